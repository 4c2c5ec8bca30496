// SPDX-License-Identifier: Apache-2.0
#include "world/nccl/nccl_bond.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace hoplite::worlds {
namespace {

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
// Thread blocks that NCCL may use on a GPU. More would take the GPU from the process's own kernels.
constexpr int kCtasMax = 4;
// How long NCCL may report an error before it ends the world. The error often comes from a death
// that a watch reports soon after, with its right cause.
constexpr std::int64_t kUnsoundNs = 1'000'000'000;
constexpr Duration kFinalizeLimit = 1_s;  // beyond it the communicator is aborted
constexpr Duration kDrainLook = 1_ms;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void pause() { std::this_thread::sleep_for(std::chrono::nanoseconds(kDrainLook.ns)); }

void* at(std::uintptr_t address) { return std::bit_cast<void*>(address); }

bool is_error(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

// True if the parts follow one another in memory, which NCCL's own all-gather needs.
bool is_one_piece(const NcclTransfer& transfer) {
  for (std::size_t i = 1; i < transfer.out.size(); ++i) {
    if (transfer.out[i] != transfer.out[i - 1] + transfer.part_bytes) return false;
  }
  return true;
}

}  // namespace

NcclBond::NcclBond(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclQueue> queue,
                   const std::shared_ptr<World>& world, const NcclPlace& place)
    : library_(std::move(library)), queue_(std::move(queue)), world_(world), place_(place) {}

OperationHandle NcclBond::join() {
  const auto world = world_.lock();
  auto joined = world->begin_companion_operation();
  {
    const std::lock_guard guard(mutex_);
    joining_ = joined->id;
    open_.insert(joining_);
    launched_.insert(joining_);
  }
  world->attach(shared_from_this());
  queue_->add(shared_from_this());
  return joined;
}

Result<CudaEvent> NcclBond::record_event(std::uintptr_t stream) const {
  const CudaCurrent current(*library_, context_);
  int is_capturing = 0;
  const int asked =
      library_->cuda.stream_is_capturing(std::bit_cast<CudaStream>(stream), &is_capturing);
  if (asked == kCudaSuccess && is_capturing != 0) {
    return Error{Code::kInvalidArgument,
                 "the array's stream is being captured into a CUDA graph, which has no operations "
                 "of worlds; call them outside"};
  }
  CudaEvent event = nullptr;
  if (const int code = library_->cuda.event_create(&event, kEventDisableTiming);
      code != kCudaSuccess) {
    return library_->cuda_error("cuEventCreate", code);
  }
  const int code = library_->cuda.event_record(event, std::bit_cast<CudaStream>(stream));
  if (code == kCudaSuccess) return event;
  library_->cuda.event_destroy(event);
  return library_->cuda_error("the array's stream", code);
}

Result<NcclBond::Issued> NcclBond::issue(NcclTransfer transfer, std::optional<std::uint64_t> turn) {
  const auto world = world_.lock();
  if (world == nullptr) return Error{Code::kCancelled, "the world was closed"};
  Issued issued{world->begin_companion_operation(), 0};
  if (issued.operation->state != Operation::State::kPending) return issued;
  Waiting waiting{issued.operation->id, std::move(transfer)};
  if (waiting.transfer.after) {
    const auto event = record_event(*waiting.transfer.after);
    if (!event) {
      world->end_companion_operation(waiting.operation, Operation::State::kCancelled);
      return event.error();
    }
    waiting.event = *event;
  }
  {
    const std::lock_guard guard(mutex_);
    issued.turn = turn.value_or(turns_given_ + 1);
    if (issued.turn > turns_begun_ && !waiting_.contains(issued.turn) &&
        phase_ == Phase::kRunning) {
      turns_given_ = std::max(turns_given_, issued.turn);
      open_.insert(waiting.operation);
      waiting_.emplace(issued.turn, std::move(waiting));
      queue_->wake();
      return issued;
    }
  }
  if (waiting.event != nullptr) library_->cuda.event_destroy(waiting.event);
  world->end_companion_operation(waiting.operation, Operation::State::kBroken);
  if (turn) return Error{Code::kBadFrame, "a turn of NCCL that was had before"};
  return issued;  // the bond has ended, so the operation is broken
}

std::string NcclBond::error() {
  const std::lock_guard guard(mutex_);
  return error_;
}

bool NcclBond::is_leaked() {
  const std::lock_guard guard(mutex_);
  return is_leaked_;
}

// ---- the NCCL thread

NcclBond::Next NcclBond::step() {
  {
    const std::lock_guard guard(mutex_);
    if (phase_ != Phase::kRunning) return Next::kOver;
    is_calling_ = true;
  }
  const Next next = advance();
  const std::lock_guard guard(mutex_);
  is_calling_ = false;
  changed_.notify_all();
  return next;
}

NcclBond::Next NcclBond::advance() {
  if (state_ == State::kBegun && !begin()) return Next::kOver;
  const CudaCurrent current(*library_, context_);
  if (state_ == State::kJoining) return poll_joining();
  if (state_ == State::kLaunching) {
    if (const Next next = poll_launching(); next != Next::kNothing) return next;
  }
  if (!is_sound()) return Next::kLook;
  finish_all();
  while (true) {
    Waiting next;
    {
      const std::lock_guard guard(mutex_);
      const auto first = waiting_.begin();
      if (first == waiting_.end() || first->first != turns_begun_ + 1) {
        return open_.empty() ? Next::kNothing : Next::kLook;
      }
      ++turns_begun_;
      next = std::move(first->second);
      waiting_.erase(first);
    }
    if (const Next after = launch(next); after != Next::kNothing) return after;
  }
}

bool NcclBond::begin() {
  const CudaFunctions& cuda = library_->cuda;
  if (const int code = cuda.primary_retain(&context_, place_.device); code != kCudaSuccess) {
    context_ = nullptr;
    fail(library_->cuda_error("GPU " + std::to_string(place_.device), code));
    return false;
  }
  const CudaCurrent current(*library_, context_);
  if (const int code = cuda.stream_create(&stream_, kStreamNonBlocking); code != kCudaSuccess) {
    fail(library_->cuda_error("cuStreamCreate", code));
    return false;
  }
  NcclConfig config;
  config.ctas_max = kCtasMax;
  const NcclResult begun =
      library_->nccl.init(&comm_, place_.size, place_.id, place_.rank, &config);
  if (is_error(begun)) {
    fail(library_->nccl_error("ncclCommInitRankConfig", begun, comm_));
    return false;
  }
  state_ = State::kJoining;
  return true;
}

NcclBond::Next NcclBond::poll_joining() {
  NcclResult state = NcclResult::kSuccess;
  NcclResult result = library_->nccl.async_error(comm_, &state);
  if (!is_error(result)) result = state;
  if (result == NcclResult::kInProgress) return Next::kAsk;
  if (is_error(result)) {
    fail(library_->nccl_error("NCCL did not bring the members together", result, comm_));
    return Next::kOver;
  }
  state_ = State::kReady;
  end_operation(joining_, Operation::State::kDone);
  return Next::kAsk;
}

// True if neither NCCL nor the stream reports an error. An error that lasts for kUnsoundNs ends the
// world.
bool NcclBond::is_sound() {
  NcclResult state = NcclResult::kSuccess;
  NcclResult result = library_->nccl.async_error(comm_, &state);
  if (!is_error(result)) result = state;
  const int code = library_->cuda.stream_query(stream_);
  const bool is_cuda_well = code == kCudaSuccess || code == kCudaNotReady;
  if (!is_error(result) && is_cuda_well) {
    unsound_since_ns_.reset();
    return true;
  }
  if (!unsound_since_ns_) unsound_since_ns_ = now_ns();
  if (now_ns() - *unsound_since_ns_ > kUnsoundNs) {
    fail(is_cuda_well ? library_->nccl_error("NCCL failed", result, comm_)
                      : library_->cuda_error("NCCL's stream failed", code));
  }
  return false;
}

NcclBond::Next NcclBond::launch(const Waiting& waiting) {
  if (waiting.event != nullptr) {
    const int code = library_->cuda.stream_wait(stream_, waiting.event, 0);
    library_->cuda.event_destroy(waiting.event);
    if (code != kCudaSuccess) {
      fail(library_->cuda_error("cuStreamWaitEvent", code));
      return Next::kOver;
    }
  }
  launching_ = waiting.operation;
  {
    const std::lock_guard guard(mutex_);
    launched_.insert(launching_);
  }
  library_->nccl.group_start();
  const NcclResult called = call(waiting.transfer);
  const NcclResult grouped = library_->nccl.group_end();
  if (is_error(called) || is_error(grouped)) {
    fail(library_->nccl_error("NCCL refused a transfer", is_error(called) ? called : grouped,
                              comm_));
    return Next::kOver;
  }
  state_ = State::kLaunching;
  return poll_launching();
}

// Makes all NCCL calls of one operation. The caller starts and ends the group around them.
NcclResult NcclBond::call(const NcclTransfer& transfer) {
  const NcclFunctions& nccl = library_->nccl;
  const int peer = transfer.peer;
  const int dtype = transfer.dtype;
  const std::size_t count = transfer.count;
  const auto& in = transfer.in;
  const auto& out = transfer.out;
  NcclResult worst = NcclResult::kSuccess;
  const auto note = [&](NcclResult result) {
    if (is_error(result) && !is_error(worst)) worst = result;
  };
  const auto send = [&](std::uintptr_t from, int to) {
    note(nccl.send(at(from), count, dtype, to, comm_, stream_));
  };
  const auto receive = [&](std::uintptr_t into, int from) {
    note(nccl.receive(at(into), count, dtype, from, comm_, stream_));
  };
  switch (transfer.kind) {
    case NcclKind::kSend:
      send(in.front(), peer);
      break;
    case NcclKind::kReceive:
      receive(out.front(), peer);
      break;
    case NcclKind::kBroadcast:
      note(nccl.broadcast(at(in.front()), at(out.front()), count, dtype, peer, comm_, stream_));
      break;
    case NcclKind::kReduce:
      note(nccl.reduce(at(in.front()), at(out.front()), count, dtype, transfer.op, peer, comm_,
                       stream_));
      break;
    case NcclKind::kAllReduce:
      note(nccl.all_reduce(at(in.front()), at(out.front()), count, dtype, transfer.op, comm_,
                           stream_));
      break;
    case NcclKind::kAllGather:
      if (is_one_piece(transfer)) {
        note(nccl.all_gather(at(in.front()), at(out.front()), count, dtype, comm_, stream_));
        break;
      }
      for (int root = 0; root < place_.size; ++root) {
        const std::uintptr_t into = out[static_cast<std::size_t>(root)];
        const std::uintptr_t from = root == place_.rank ? in.front() : into;
        note(nccl.broadcast(at(from), at(into), count, dtype, root, comm_, stream_));
      }
      break;
    case NcclKind::kGather:
      send(in.front(), peer);
      for (std::size_t from = 0; from < out.size(); ++from)
        receive(out[from], static_cast<int>(from));
      break;
    case NcclKind::kScatter:
      for (std::size_t to = 0; to < in.size(); ++to) send(in[to], static_cast<int>(to));
      receive(out.front(), peer);
      break;
  }
  return worst;
}

// Adds the host function behind the operation, once NCCL's non-blocking call has ended.
NcclBond::Next NcclBond::poll_launching() {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult result = library_->nccl.async_error(comm_, &state);
  if (is_error(result) || is_error(state)) {
    state_ = State::kReady;  // is_sound() handles the error
    return Next::kLook;
  }
  if (state == NcclResult::kInProgress) return Next::kAsk;
  state_ = State::kReady;
  auto ring = std::make_unique<Ring>(Ring{shared_from_this(), launching_});
  const int code = library_->cuda.host_function(stream_, &NcclBond::handle_passed, ring.get());
  if (code == kCudaSuccess) {
    [[maybe_unused]] const Ring* const theirs = ring.release();
    return Next::kNothing;
  }
  fail(library_->cuda_error("cuLaunchHostFunc", code));
  return Next::kOver;
}

// Runs on a thread of CUDA, which must not call CUDA. So it only records the end and wakes the NCCL
// thread.
void NcclBond::handle_passed(void* ring) {
  const std::unique_ptr<Ring> passed(static_cast<Ring*>(ring));
  NcclBond& bond = *passed->bond;
  {
    const std::lock_guard guard(bond.mutex_);
    bond.finished_.push_back(passed->operation);
    bond.launched_.erase(passed->operation);
    bond.changed_.notify_all();
  }
  bond.queue_->wake();
}

void NcclBond::finish_all() {
  std::vector<OperationId> finished;
  {
    const std::lock_guard guard(mutex_);
    finished.swap(finished_);
  }
  for (const OperationId operation : finished) end_operation(operation, Operation::State::kDone);
}

// Leaves the operation pending if the world has ended; tear_down() ends it then.
void NcclBond::end_operation(OperationId operation, Operation::State state) {
  if (const auto world = world_.lock()) world->end_companion_operation(operation, state);
  const std::lock_guard guard(mutex_);
  if (phase_ == Phase::kRunning) open_.erase(operation);
  launched_.erase(operation);
  changed_.notify_all();
}

// Ends the bond. Ends the world as well, except when the members have not all joined, because the
// caller of join() then decides.
void NcclBond::fail(const Error& error) {
  const bool has_joined = state_ != State::kBegun && state_ != State::kJoining;
  {
    const std::lock_guard guard(mutex_);
    error_ = error.text;
  }
  if (has_joined) {
    if (const auto world = world_.lock()) world->abort(Cause::kLocal, error.text);
  }
  handle_end(Ending::kBroken);
}

// ---- the end

void NcclBond::handle_end(Ending ending) {
  {
    const std::lock_guard guard(mutex_);
    if (phase_ != Phase::kRunning) return;
    phase_ = Phase::kEnded;
  }
  queue_->begin_teardown();
  quiet_thread("hoplite-nccl-end", [self = shared_from_this(), ending] {
    self->tear_down(ending);
  }).detach();
}

// Breaks pending operations as soon as their kernels have ended. The abort stops the kernels first
// and returns later. If it never returns, the communicator, its thread and its stream are leaked,
// and everything else goes on.
void NcclBond::tear_down(Ending ending) {
  quiet_thread("hoplite-nccl-abo", [self = shared_from_this(), ending] {
    self->tear_down_communicator(ending);
    const std::lock_guard guard(self->mutex_);
    self->phase_ = Phase::kDown;
    self->changed_.notify_all();
  }).detach();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kAbortLimit.ns);
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_until(lock, limit, [this] {
    return phase_ == Phase::kDown || (phase_ == Phase::kQuiet && launched_.empty());
  });
  is_leaked_ = !came;
  const std::set<OperationId> open = std::exchange(open_, {});
  lock.unlock();
  if (const auto world = world_.lock()) {
    for (const OperationId operation : open) {
      world->end_companion_operation(operation, Operation::State::kBroken);
    }
  }
  lock.lock();
  if (!changed_.wait_until(lock, limit, [this] { return phase_ == Phase::kDown; })) {
    std::fprintf(stderr,
                 "hoplite_ray: a communicator of NCCL (rank %d of %d on GPU %d) was not aborted "
                 "within %lld s; it is left as it is\n",
                 place_.rank, place_.size, place_.device,
                 static_cast<long long>(kAbortLimit.ns / 1'000'000'000));
  }
  lock.unlock();
  queue_->end_teardown();
}

void NcclBond::tear_down_communicator(Ending ending) {
  {
    std::unique_lock lock(mutex_);
    const auto is_quiet = [this] { return !is_calling_; };  // nothing more will be launched
    const bool came = changed_.wait_for(lock, std::chrono::nanoseconds(kCallLimit.ns), is_quiet);
    if (!came && comm_ == nullptr) changed_.wait(lock, is_quiet);  // no communicator to abort
    if (is_quiet()) phase_ = Phase::kQuiet;
    changed_.notify_all();
    for (auto& [turn, waiting] : waiting_) {
      if (waiting.event != nullptr) library_->cuda.event_destroy(waiting.event);
    }
    waiting_.clear();
  }
  if (context_ == nullptr) return;
  {
    const CudaCurrent current(*library_, context_);
    if (comm_ != nullptr && (ending == Ending::kBroken || !is_finalized())) {
      // Never destroy it here: ncclCommDestroy waits for kernels that wait for a peer. Never revoke
      // it first: the revoke runs beside the abort and joins the same threads. Design decision 22c.
      library_->nccl.abort(comm_);
    }
    if (stream_ != nullptr) {
      while (library_->cuda.stream_query(stream_) == kCudaNotReady) pause();
      library_->cuda.stream_destroy(stream_);
    }
  }
  library_->cuda.primary_release(place_.device);
}

bool NcclBond::is_finalized() {
  NcclResult state = library_->nccl.finalize(comm_);
  const std::int64_t until = now_ns() + kFinalizeLimit.ns;
  while (state == NcclResult::kInProgress && now_ns() < until) {
    pause();
    if (is_error(library_->nccl.async_error(comm_, &state))) return false;
  }
  return state == NcclResult::kSuccess && library_->nccl.destroy(comm_) == NcclResult::kSuccess;
}

}  // namespace hoplite::worlds
