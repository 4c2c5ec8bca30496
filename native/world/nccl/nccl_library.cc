// SPDX-License-Identifier: Apache-2.0
#include "world/nccl/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <string_view>
#include <utility>

namespace hoplite::worlds {
namespace {

constexpr const char* kNcclName = "libnccl.so.2";
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

// Fills slots with symbols of one library, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}
  template <typename Function>
  void find(const char* name, Function*& slot) {
    look(name, slot);
    if (slot == nullptr && missing_.empty()) missing_ = name;
  }
  template <typename Function>
  void look(const char* name, Function*& slot) const {
    slot = reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

std::string find_nccl(void* handle, NcclFunctions& nccl) {
  Finder finder(handle);
  finder.find("ncclGetVersion", nccl.version);
  finder.find("ncclGetUniqueId", nccl.unique_id);
  finder.find("ncclCommInitRankConfig", nccl.init);
  finder.find("ncclCommGetAsyncError", nccl.async_error);
  finder.find("ncclCommFinalize", nccl.finalize);
  finder.find("ncclCommDestroy", nccl.destroy);
  finder.find("ncclCommAbort", nccl.abort);
  finder.find("ncclGetErrorString", nccl.error_text);
  finder.find("ncclGetLastError", nccl.last_error);
  finder.find("ncclGroupStart", nccl.group_start);
  finder.find("ncclGroupEnd", nccl.group_end);
  finder.find("ncclSend", nccl.send);
  finder.find("ncclRecv", nccl.receive);
  finder.find("ncclBroadcast", nccl.broadcast);
  finder.find("ncclReduce", nccl.reduce);
  finder.find("ncclAllReduce", nccl.all_reduce);
  finder.find("ncclAllGather", nccl.all_gather);
  return finder.missing();
}

std::string find_cuda(void* handle, CudaFunctions& cuda) {
  Finder finder(handle);
  finder.find("cuInit", cuda.init);
  finder.find("cuDeviceGetCount", cuda.device_count);
  finder.find("cuDevicePrimaryCtxGetState", cuda.primary_state);
  finder.find("cuDevicePrimaryCtxRetain", cuda.primary_retain);
  finder.find("cuDevicePrimaryCtxRelease_v2", cuda.primary_release);
  finder.find("cuCtxGetCurrent", cuda.context_current);
  finder.find("cuCtxGetDevice", cuda.context_device);
  finder.find("cuCtxPushCurrent_v2", cuda.context_push);
  finder.find("cuCtxPopCurrent_v2", cuda.context_pop);
  finder.find("cuStreamCreate", cuda.stream_create);
  finder.find("cuStreamDestroy_v2", cuda.stream_destroy);
  finder.find("cuStreamQuery", cuda.stream_query);
  finder.find("cuStreamWaitEvent", cuda.stream_wait);
  finder.find("cuStreamIsCapturing", cuda.stream_is_capturing);
  finder.find("cuThreadExchangeStreamCaptureMode", cuda.exchange_capture_mode);
  finder.find("cuEventCreate", cuda.event_create);
  finder.find("cuEventDestroy_v2", cuda.event_destroy);
  finder.find("cuEventRecord", cuda.event_record);
  finder.find("cuLaunchHostFunc", cuda.host_function);
  finder.find("cuPointerGetAttribute", cuda.pointer_attribute);
  finder.find("cuGetErrorString", cuda.error_text);
  return finder.missing();
}

std::string loader_error() {
  const char* const said = ::dlerror();
  return said == nullptr ? "not found" : said;
}

void* open_nccl(std::span<const std::string> names, std::string& why) {
  // Prefer a library that is loaded already: a second one under another name has its own state.
  for (const std::string& name : names) {
    if (void* const there = ::dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return there;
  }
  for (const std::string& name : names) {
    if (void* const opened = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    why += (why.empty() ? "" : "; ") + loader_error();
  }
  return nullptr;
}

std::string_view stem_of(std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  return file.substr(0, file.find(".so"));
}

// True if a library of that name, of any version, is loaded. It avoids dlopen with RTLD_NOLOAD,
// which first searches all folders and takes longer than a message.
bool may_be_loaded(const std::string& name) {
  std::string_view sought = stem_of(name);
  const auto look = [](dl_phdr_info* object, std::size_t, void* stem) {
    const bool has_name = object->dlpi_name != nullptr;
    return has_name && stem_of(object->dlpi_name) == *static_cast<std::string_view*>(stem) ? 1 : 0;
  };
  return ::dl_iterate_phdr(look, &sought) != 0;
}

Error missing(const std::string& what) { return {Code::kInvalidArgument, what}; }

}  // namespace

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::load(std::span<const std::string> nccl,
                                                             const std::string& cuda, CudaUse use) {
  auto library = std::make_shared<NcclLibrary>();
  const int mode = RTLD_NOW | (use == CudaUse::kAsItIs ? RTLD_NOLOAD : 0);
  const bool is_wanted = use != CudaUse::kAsItIs || may_be_loaded(cuda);
  void* const driver = is_wanted ? ::dlopen(cuda.c_str(), mode) : nullptr;
  if (driver == nullptr) {
    if (use == CudaUse::kAsItIs) return missing("this process uses no GPU");
    return missing("no GPU: the CUDA driver can't be loaded (" + loader_error() + ")");
  }
  if (const std::string name = find_cuda(driver, library->cuda); !name.empty()) {
    return missing(cuda + " has no " + name + "; install a driver of CUDA 11.4 or later");
  }
  std::string why;
  void* const handle = open_nccl(nccl, why);
  if (handle == nullptr) {
    return missing("no NCCL (" + why + "); install nvidia-nccl-cu13 or nvidia-nccl-cu12, or name " +
                   std::string(kNcclName) + " by HOPLITE_RAY_NCCL_LIBRARY");
  }
  const std::string name = find_nccl(handle, library->nccl);
  if (library->nccl.version != nullptr) library->nccl.version(&library->version);
  if (!name.empty() || library->version < kNcclVersionMin) {
    return missing("NCCL of version code " + std::to_string(library->version) +
                   (name.empty() ? "" : " without " + name) +
                   " is too old; install 2.17 or later (nvidia-nccl-cu12, nvidia-nccl-cu13)");
  }
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

Result<int> NcclLibrary::device(CudaUse use) const {
  if (use == CudaUse::kBegin) {
    if (const int code = cuda.init(0); code != kCudaSuccess) {
      return cuda_error("no GPU: cuInit", code);
    }
  }
  CudaContext context = nullptr;
  int device = 0;
  // Fails if the process has not started CUDA; then no thread uses a device.
  if (cuda.context_current(&context) == kCudaSuccess && context != nullptr &&
      cuda.context_device(&device) == kCudaSuccess) {
    return device;
  }
  int count = 0;
  if (const int code = cuda.device_count(&count); code != kCudaSuccess) count = 0;
  for (device = 0; device < count; ++device) {
    unsigned flags = 0;
    int is_active = 0;
    if (cuda.primary_state(device, &flags, &is_active) == kCudaSuccess && is_active != 0) {
      return device;
    }
  }
  if (use == CudaUse::kAsItIs) return missing("this process uses no GPU");
  if (count == 0) return missing("no GPU: the CUDA driver shows none to this process");
  return 0;
}

Result<int> NcclLibrary::device_of(std::uintptr_t address) const {
  int device = 0;
  if (const int code = cuda.pointer_attribute(&device, kDeviceOrdinal, address);
      code != kCudaSuccess) {
    return cuda_error("the array is in no memory that CUDA knows", code);
  }
  return device;
}

Result<NcclId> NcclLibrary::unique_id() const {
  NcclId id;
  if (const NcclResult code = nccl.unique_id(&id); code != NcclResult::kSuccess) {
    return nccl_error("ncclGetUniqueId", code, nullptr);
  }
  return id;
}

Error NcclLibrary::cuda_error(const std::string& what, int code) const {
  const char* text = nullptr;
  cuda.error_text(code, &text);
  return {Code::kInvalidArgument,
          what + ": " + (text == nullptr ? "CUDA error " + std::to_string(code) : text)};
}

Error NcclLibrary::nccl_error(const std::string& what, NcclResult code, NcclComm comm) const {
  const char* const text = nccl.error_text(code);
  const char* const last = nccl.last_error(comm);
  std::string whole = what + ": " + (text == nullptr ? "an error of NCCL" : text);
  if (last != nullptr && *last != '\0') whole += std::string(" (") + last + ")";
  return {Code::kSystem, whole + "; NCCL_DEBUG=WARN tells more"};
}

}  // namespace hoplite::worlds
