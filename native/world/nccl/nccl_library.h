// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL and of the CUDA driver that worlds call. They are found at run time, so a
// build needs neither. Loaded once and never unloaded. Immutable, any thread. Signatures and
// layouts are those of NCCL's and CUDA's public interfaces.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace hoplite::worlds {

using NcclComm = struct NcclCommTag*;
using CudaContext = struct CudaContextTag*;
using CudaStream = struct CudaStreamTag*;
using CudaEvent = struct CudaEventTag*;

struct NcclId {
  std::array<char, 128> bytes{};
};

// The layout of NCCL 2.17, the oldest version that has these fields. Later versions accept it,
// because `size` and `version` say which layout it is.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN and nullptr mean the library's own choice
  int ctas_min = INT_MIN;
  int ctas_max = INT_MIN;
  const char* net_name = nullptr;
};
inline constexpr int kNcclVersionMin = 21700;

enum class NcclResult : int { kSuccess = 0, kInProgress = 7 };  // all others are errors

struct NcclFunctions {
  NcclResult (*version)(int*);
  NcclResult (*unique_id)(NcclId*);
  NcclResult (*init)(NcclComm*, int size, NcclId, int rank, NcclConfig*);
  NcclResult (*async_error)(NcclComm, NcclResult*);
  NcclResult (*finalize)(NcclComm);
  NcclResult (*destroy)(NcclComm);
  NcclResult (*abort)(NcclComm);
  const char* (*error_text)(NcclResult);
  const char* (*last_error)(NcclComm);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*send)(const void*, std::size_t, int dtype, int peer, NcclComm, CudaStream);
  NcclResult (*receive)(void*, std::size_t, int dtype, int peer, NcclComm, CudaStream);
  NcclResult (*broadcast)(const void*, void*, std::size_t, int dtype, int root, NcclComm,
                          CudaStream);
  NcclResult (*reduce)(const void*, void*, std::size_t, int dtype, int op, int root, NcclComm,
                       CudaStream);
  NcclResult (*all_reduce)(const void*, void*, std::size_t, int dtype, int op, NcclComm,
                           CudaStream);
  NcclResult (*all_gather)(const void*, void*, std::size_t, int dtype, NcclComm, CudaStream);
};

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaNotReady = 600;

struct CudaFunctions {
  int (*init)(unsigned flags);
  int (*device_count)(int*);
  int (*primary_state)(int device, unsigned* flags, int* is_active);
  int (*primary_retain)(CudaContext*, int device);
  int (*primary_release)(int device);
  int (*context_current)(CudaContext*);
  int (*context_device)(int*);
  int (*context_push)(CudaContext);
  int (*context_pop)(CudaContext*);
  int (*stream_create)(CudaStream*, unsigned flags);
  int (*stream_destroy)(CudaStream);
  int (*stream_query)(CudaStream);
  int (*stream_wait)(CudaStream, CudaEvent, unsigned flags);
  int (*stream_is_capturing)(CudaStream, int*);
  int (*exchange_capture_mode)(int*);
  int (*event_create)(CudaEvent*, unsigned flags);
  int (*event_destroy)(CudaEvent);
  int (*event_record)(CudaEvent, CudaStream);
  int (*host_function)(CudaStream, void (*)(void*), void*);
  int (*pointer_attribute)(void*, int attribute, std::uintptr_t);
  int (*error_text)(int, const char**);
};

// Whether a call may start CUDA in a process that does not use it yet.
enum class CudaUse : std::uint8_t { kAsItIs, kBegin };

struct NcclLibrary {
  NcclFunctions nccl{};
  CudaFunctions cuda{};
  int version = 0;

  // Returns the NCCL that the process has loaded already, or else the first of `nccl` that loads.
  // `cuda` names the driver; with kAsItIs it must be loaded already. An error names what is
  // missing.
  [[nodiscard]] static Result<std::shared_ptr<const NcclLibrary>> load(
      std::span<const std::string> nccl, const std::string& cuda, CudaUse use);

  // Returns the device of the calling thread, or else the first that the process uses, or else,
  // with kBegin, device 0.
  [[nodiscard]] Result<int> device(CudaUse use) const;
  // Returns the device that owns the memory at `address`.
  [[nodiscard]] Result<int> device_of(std::uintptr_t address) const;
  [[nodiscard]] Result<NcclId> unique_id() const;

  [[nodiscard]] Error cuda_error(const std::string& what, int code) const;
  // Returns an error with the library's own text for it. `comm` may be null.
  [[nodiscard]] Error nccl_error(const std::string& what, NcclResult code, NcclComm comm) const;
};

// Makes a context current in the calling thread while it lives. Other threads may capture graphs
// meanwhile.
class CudaCurrent {
 public:
  CudaCurrent(const NcclLibrary& library, CudaContext context) : library_(library) {
    is_pushed_ = library.cuda.context_push(context) == kCudaSuccess;
    library.cuda.exchange_capture_mode(&capture_mode_);
  }
  ~CudaCurrent() {
    CudaContext popped = nullptr;
    library_.cuda.exchange_capture_mode(&capture_mode_);
    if (is_pushed_) library_.cuda.context_pop(&popped);
  }
  CudaCurrent(const CudaCurrent&) = delete;
  CudaCurrent& operator=(const CudaCurrent&) = delete;

 private:
  const NcclLibrary& library_;
  bool is_pushed_ = false;
  int capture_mode_ = 2;  // relaxed, so these calls break no capture; then the mode to restore
};

}  // namespace hoplite::worlds
