// SPDX-License-Identifier: Apache-2.0
// A shared library with the functions of NCCL and of the CUDA driver that worlds call, on memory of
// the host and over Unix sockets, for tests where there is no GPU. A stream is a thread. A transfer
// whose peer is gone waits for ever, as NCCL's kernels do, until its communicator is aborted.
// FAKE_NCCL names faults (see `has_fault`); the functions named fake_* are for the test alone.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world/nccl/fake_stream_test.h"

namespace {

using hoplite::worlds::Event;
using hoplite::worlds::Stream;

constexpr int kInternalError = 3;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr int kCudaNotInitialized = 3;
constexpr int kCudaNotReady = 600;
constexpr std::array<std::size_t, 12> kElementBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// The faults: init_fails, init_hangs, init_dies, abort_hangs, abort_lingers, finalize_hangs,
// launch_is_slow,
// send_dies (after half of its bytes), error (once something was launched).
bool has_fault(const char* name) {
  const char* const faults = std::getenv("FAKE_NCCL");
  return faults != nullptr && std::string(faults).find(name) != std::string::npos;
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::atomic<bool> is_initialized = false;
std::array<std::atomic<bool>, 2> is_used{};
std::atomic<bool> is_capturing = false;
std::atomic<int> launched = 0;
std::atomic<int> aborted = 0;
std::atomic<std::uintptr_t> elsewhere = 0;  // an address on GPU 1
thread_local std::vector<int*> contexts;
std::array<int, 2> devices = {0, 1};

struct Comm {
  std::string name;
  int rank = 0;
  int size = 0;
  std::vector<int> peers;
  std::atomic<int> state = kInProgress;
  std::atomic<bool> is_aborted = false;
  std::thread meeting;
  Comm* aborted_before = nullptr;

  [[nodiscard]] bool await(int fd, short what) const {
    while (!is_aborted) {
      pollfd one{fd, what, 0};
      if (::poll(&one, 1, 5) > 0) return true;
    }
    return false;
  }
  void wait_for_abort() const {
    while (!is_aborted) sleep_ms(5);
  }
  void send(int to, const std::byte* from, std::size_t size_bytes) const {
    const int fd = peers[static_cast<std::size_t>(to)];
    const std::size_t half = has_fault("send_dies") ? size_bytes / 2 : size_bytes + 1;
    for (std::size_t done = 0; done < size_bytes;) {
      if (!await(fd, POLLOUT)) return;
      const std::size_t most = std::min<std::size_t>(size_bytes - done, 64 << 10);
      const ssize_t sent = ::send(fd, from + done, most, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) done += static_cast<std::size_t>(sent);
      if (sent < 0 && errno != EAGAIN) return wait_for_abort();
      if (done >= half) ::raise(SIGKILL);
    }
  }
  void receive(int from, std::byte* into, std::size_t size_bytes) const {
    const int fd = peers[static_cast<std::size_t>(from)];
    for (std::size_t done = 0; done < size_bytes;) {
      if (!await(fd, POLLIN)) return;
      const ssize_t got = ::recv(fd, into + done, size_bytes - done, MSG_DONTWAIT);
      if (got > 0) done += static_cast<std::size_t>(got);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return wait_for_abort();
    }
  }
};

std::atomic<Comm*> last_aborted = nullptr;  // they stay: a transfer may still look at one

sockaddr_un address_of(const Comm& comm, int rank, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "fake-nccl-" + comm.name + "-" + std::to_string(rank);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

void meet(Comm& comm) {
  if (has_fault("init_dies")) ::raise(SIGKILL);
  if (has_fault("init_hangs")) return comm.wait_for_abort();
  if (has_fault("init_fails")) {
    comm.state = kInvalidUsage;
    return;
  }
  socklen_t size = 0;
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un own = address_of(comm, comm.rank, size);
  ::bind(listener, reinterpret_cast<const sockaddr*>(&own), size);
  ::listen(listener, comm.size);
  for (int other = 0; other < comm.rank && !comm.is_aborted; ++other) {
    const sockaddr_un theirs = address_of(comm, other, size);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (::connect(fd, reinterpret_cast<const sockaddr*>(&theirs), size) != 0 &&
           !comm.is_aborted) {
      sleep_ms(1);
    }
    [[maybe_unused]] const auto sent = ::send(fd, &comm.rank, sizeof comm.rank, MSG_NOSIGNAL);
    comm.peers[static_cast<std::size_t>(other)] = fd;
  }
  for (int count = comm.rank + 1; count < comm.size && comm.await(listener, POLLIN); ++count) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int other = 0;
    if (::recv(fd, &other, sizeof other, MSG_WAITALL) != sizeof other) break;
    comm.peers[static_cast<std::size_t>(other)] = fd;
  }
  ::close(listener);
  if (!comm.is_aborted) comm.state = 0;
}

constexpr int kMean = 4;  // ncclAvg

enum class Kind { kSend, kReceive, kBroadcast, kReduce, kAllReduce, kAllGather };

struct Call {
  Kind kind;
  const std::byte* from;
  std::byte* into;
  std::size_t size_bytes;
  int dtype;
  int op;
  int peer;
};

template <typename Number>
void fold_as(int op, std::byte* into, const std::byte* other, std::size_t size_bytes) {
  auto* mine = reinterpret_cast<Number*>(into);
  const auto* theirs = reinterpret_cast<const Number*>(other);
  for (std::size_t i = 0; i < size_bytes / sizeof(Number); ++i) {
    const Number a = mine[i];
    const Number b = theirs[i];
    const std::array<Number, 5> all = {static_cast<Number>(a + b), static_cast<Number>(a * b),
                                       std::max(a, b), std::min(a, b), static_cast<Number>(a + b)};
    mine[i] = all[static_cast<std::size_t>(op)];
  }
}

void fold(const Call& call, const std::byte* other) {
  using Fold = void (*)(int, std::byte*, const std::byte*, std::size_t);
  const std::map<int, Fold> folds = {{0, fold_as<std::int8_t>},  {1, fold_as<std::uint8_t>},
                                     {2, fold_as<std::int32_t>}, {3, fold_as<std::uint32_t>},
                                     {4, fold_as<std::int64_t>}, {5, fold_as<std::uint64_t>},
                                     {7, fold_as<float>},        {8, fold_as<double>}};
  folds.at(call.dtype)(call.op, call.into, other, call.size_bytes);
}

template <typename Number>
void divide_as(std::byte* into, std::size_t size_bytes, int divisor) {
  auto* mine = reinterpret_cast<Number*>(into);
  for (std::size_t i = 0; i < size_bytes / sizeof(Number); ++i) {
    mine[i] /= static_cast<Number>(divisor);
  }
}

// Divides what was added up for a mean. NCCL divides integers, too; worlds give it floats only.
void divide(const Call& call, int divisor) {
  if (call.dtype == 7) divide_as<float>(call.into, call.size_bytes, divisor);
  if (call.dtype == 8) divide_as<double>(call.into, call.size_bytes, divisor);
}

void broadcast(const Comm& comm, const Call& call) {
  if (comm.rank != call.peer) return comm.receive(call.peer, call.into, call.size_bytes);
  std::memmove(call.into, call.from, call.size_bytes);
  for (int other = 0; other < comm.size; ++other) {
    if (other != comm.rank) comm.send(other, call.from, call.size_bytes);
  }
}

void reduce(const Comm& comm, const Call& call) {
  if (comm.rank != call.peer) return comm.send(call.peer, call.from, call.size_bytes);
  std::memmove(call.into, call.from, call.size_bytes);
  std::vector<std::byte> theirs(call.size_bytes);
  for (int other = 0; other < comm.size; ++other) {
    if (other == comm.rank) continue;
    comm.receive(other, theirs.data(), call.size_bytes);
    fold(call, theirs.data());
  }
  if (call.op == kMean) divide(call, comm.size);
}

void run_call(const Comm& comm, Call call) {
  switch (call.kind) {
    case Kind::kSend:
      return comm.send(call.peer, call.from, call.size_bytes);
    case Kind::kReceive:
      return comm.receive(call.peer, call.into, call.size_bytes);
    case Kind::kBroadcast:
      return broadcast(comm, call);
    case Kind::kReduce:
      return reduce(comm, call);
    case Kind::kAllReduce:
      call.peer = 0;
      reduce(comm, call);
      call.from = call.into;
      return broadcast(comm, call);
    case Kind::kAllGather:
      for (call.peer = 0; call.peer < comm.size; ++call.peer, call.into += call.size_bytes) {
        broadcast(comm, call);
      }
  }
}

// Sends of a group go beside its receives, as NCCL's do; those to itself meet directly.
void run_group(const Comm& comm, const std::vector<Call>& calls) {
  std::vector<Call> sends;
  std::vector<Call> others;
  std::deque<const std::byte*> to_itself;
  for (const Call& call : calls) {
    const bool is_own = call.peer == comm.rank && calls.size() > 1;
    if (call.kind == Kind::kSend && is_own) {
      to_itself.push_back(call.from);
    } else {
      (call.kind == Kind::kSend ? sends : others).push_back(call);
    }
  }
  std::thread sending([&] {
    for (const Call& call : sends) run_call(comm, call);
  });
  for (const Call& call : others) {
    if (call.kind == Kind::kReceive && call.peer == comm.rank && !to_itself.empty()) {
      std::memmove(call.into, to_itself.front(), call.size_bytes);
      to_itself.pop_front();
    } else {
      run_call(comm, call);
    }
  }
  sending.join();
}

struct Group {
  int depth = 0;
  Comm* comm = nullptr;
  Stream* stream = nullptr;
  std::vector<Call> calls;
};
thread_local Group group;

int launch(Comm* comm, Stream* stream, std::vector<Call> calls) {
  ++launched;
  if (has_fault("error")) {
    comm->state = kInternalError;
    stream->push([comm] { comm->wait_for_abort(); });
    return 0;
  }
  const auto push = [comm, stream, calls = std::move(calls)] {
    stream->push([comm, calls] { run_group(*comm, calls); });
  };
  if (!has_fault("launch_is_slow")) {
    push();
    return 0;
  }
  comm->state = kInProgress;
  std::thread([comm, push] {
    sleep_ms(20);
    push();
    comm->state = 0;
  }).detach();
  return kInProgress;
}

int note(Comm* comm, Stream* stream, const Call& call) {
  if (group.depth == 0) return launch(comm, stream, {call});
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(call);
  return 0;
}

const std::byte* bytes(const void* address) { return static_cast<const std::byte*>(address); }
std::byte* bytes(void* address) { return static_cast<std::byte*>(address); }
std::size_t size_of(std::size_t count, int dtype) {
  return count * kElementBytes.at(static_cast<std::size_t>(dtype));
}

struct Id {
  std::array<char, 128> bytes{};
};

struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

}  // namespace

extern "C" {

// ---- NCCL

int ncclGetVersion(int* version) {
  *version = 23007;
  return 0;
}

int ncclGetUniqueId(Id* id) {
  static std::atomic<int> count = 0;
  std::snprintf(id->bytes.data(), id->bytes.size(), "%d-%d", ::getpid(), ++count);
  return 0;
}

int ncclCommInitRankConfig(Comm** made, int size, Id id, int rank, const Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidUsage;
  auto* comm = new Comm;
  comm->name = id.bytes.data();
  comm->rank = rank;
  comm->size = size;
  comm->peers.assign(static_cast<std::size_t>(size), -1);
  comm->meeting = std::thread([comm] { meet(*comm); });
  *made = comm;
  return kInProgress;
}

int ncclCommGetAsyncError(const Comm* comm, int* state) {
  *state = comm->state;
  return 0;
}

int ncclCommAbort(Comm* comm) {
  ++aborted;
  comm->is_aborted = has_fault("abort_lingers");  // transfers end before the abort returns
  while (has_fault("abort_hangs") || has_fault("abort_lingers")) sleep_ms(100);
  comm->aborted_before = last_aborted.exchange(comm);
  comm->is_aborted = true;
  comm->meeting.join();
  sleep_ms(20);  // what still runs looks every 5 ms, and must not meet a number that is used anew
  for (const int fd : comm->peers) ::close(fd);
  return 0;
}

int ncclCommFinalize(Comm* comm) {
  comm->state = has_fault("finalize_hangs") ? kInProgress : 0;
  return kInProgress;
}

int ncclCommDestroy(Comm* comm) {
  comm->meeting.join();
  for (const int fd : comm->peers) ::close(fd);
  delete comm;
  return 0;
}

const char* ncclGetErrorString(int code) {
  return code == kInvalidUsage ? "invalid usage" : "internal error";
}
const char* ncclGetLastError(const Comm*) { return "as the fake was told"; }

int ncclGroupStart() {
  ++group.depth;
  return 0;
}

int ncclGroupEnd() {
  if (--group.depth > 0 || group.calls.empty()) return 0;
  return launch(group.comm, group.stream, std::exchange(group.calls, {}));
}

int ncclSend(const void* from, std::size_t count, int dtype, int peer, Comm* comm, Stream* stream) {
  return note(comm, stream,
              {Kind::kSend, bytes(from), nullptr, size_of(count, dtype), dtype, 0, peer});
}

int ncclRecv(void* into, std::size_t count, int dtype, int peer, Comm* comm, Stream* stream) {
  return note(comm, stream,
              {Kind::kReceive, nullptr, bytes(into), size_of(count, dtype), dtype, 0, peer});
}

int ncclBroadcast(const void* from, void* into, std::size_t count, int dtype, int root, Comm* comm,
                  Stream* stream) {
  return note(comm, stream,
              {Kind::kBroadcast, bytes(from), bytes(into), size_of(count, dtype), dtype, 0, root});
}

int ncclReduce(const void* from, void* into, std::size_t count, int dtype, int op, int root,
               Comm* comm, Stream* stream) {
  return note(comm, stream,
              {Kind::kReduce, bytes(from), bytes(into), size_of(count, dtype), dtype, op, root});
}

int ncclAllReduce(const void* from, void* into, std::size_t count, int dtype, int op, Comm* comm,
                  Stream* stream) {
  return note(comm, stream,
              {Kind::kAllReduce, bytes(from), bytes(into), size_of(count, dtype), dtype, op, 0});
}

int ncclAllGather(const void* from, void* into, std::size_t count, int dtype, Comm* comm,
                  Stream* stream) {
  return note(comm, stream,
              {Kind::kAllGather, bytes(from), bytes(into), size_of(count, dtype), dtype, 0, 0});
}

// ---- the CUDA driver

int cuInit(unsigned flags) {
  is_initialized = true;
  return static_cast<int>(flags);
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return is_initialized ? 0 : kCudaNotInitialized;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = is_used.at(static_cast<std::size_t>(device)) ? 1 : 0;
  return 0;
}

int cuDevicePrimaryCtxRetain(int** context, int device) {
  is_used.at(static_cast<std::size_t>(device)) = true;
  *context = &devices.at(static_cast<std::size_t>(device));
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) { return 0; }

int cuCtxGetCurrent(int** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return is_initialized ? 0 : kCudaNotInitialized;
}

int cuCtxGetDevice(int* device) {
  *device = *contexts.back();
  return 0;
}

int cuCtxPushCurrent_v2(int* context) {
  contexts.push_back(context);
  return 0;
}

int cuCtxPopCurrent_v2(int** context) {
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}

int cuStreamCreate(Stream** stream, unsigned) {
  *stream = new Stream;
  return 0;
}

int cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  return 0;
}

int cuStreamQuery(Stream* stream) { return stream->is_idle() ? 0 : kCudaNotReady; }

int cuStreamIsCapturing(const Stream*, int* status) {
  *status = is_capturing ? 1 : 0;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int own = 0;
  std::swap(own, *mode);
  return 0;
}

int cuEventCreate(Event** event, unsigned) {
  *event = new Event;
  return 0;
}

int cuEventDestroy_v2(Event* event) {
  delete event;
  return 0;
}

int cuEventRecord(const Event* event, Stream* stream) {
  if (is_default(stream)) return 0;
  event->mark->is_passed = false;
  stream->push([mark = event->mark] {
    const std::lock_guard guard(mark->mutex);
    mark->is_passed = true;
    mark->changed.notify_all();
  });
  return 0;
}

int cuStreamWaitEvent(Stream* stream, const Event* event, unsigned) {
  stream->push([mark = event->mark] {
    std::unique_lock lock(mark->mutex);
    mark->changed.wait(lock, [&] { return mark->is_passed; });
  });
  return 0;
}

int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  stream->push([function, argument] { function(argument); });
  return 0;
}

int cuPointerGetAttribute(int* device, int, std::uintptr_t address) {
  *device = address == elsewhere ? 1 : 0;
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "an error of the fake";
  return 0;
}

// ---- for the test

int fake_launched() { return launched; }
int fake_aborted() { return aborted; }
void fake_forget() {
  launched = aborted = 0;
  elsewhere = 0;
}
// Makes the process use a GPU, like torch or cupy in a real one.
void fake_use(int device) {
  is_initialized = true;
  is_used.at(static_cast<std::size_t>(device)) = true;
}
void fake_capture(bool is_on) { is_capturing = is_on; }
void fake_move(std::uintptr_t address) { elsewhere = address; }
// A kernel that fills memory after a while.
void fake_fill(Stream* stream, void* address, int value, std::size_t size_bytes, int after_ms) {
  stream->push([=] {
    sleep_ms(after_ms);
    std::memset(address, value, size_bytes);
  });
}

}  // extern "C"
