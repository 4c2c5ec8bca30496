// SPDX-License-Identifier: Apache-2.0
// One communicator of NCCL between members of a world, with a stream of its own. The members agree
// on each operation first. Each then issues it in its turn, and the communicator's first member
// gives the turns. So no kernel waits for an absent peer, and no two kernels wait crosswise.
//  - The NCCL thread calls step(); any thread may call the rest.
//  - An operation has succeeded if the stream has passed it, NCCL reports no error, and the world
//    has not ended.
//  - After the world's end an operation ends only when nothing can touch its memory: when its
//    kernels have ended or the communicator is aborted. After kAbortLimit the bond is leaked.
//  - A thread that holds mutex_ never takes the world's lock.
// NCCL's user guide, "Fault tolerance"; design decision 22c.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "world/companion.h"
#include "world/nccl/nccl_library.h"
#include "world/nccl/nccl_thread.h"
#include "world/world.h"

namespace hoplite::worlds {

// How long an abort may take. Beyond it the communicator is leaked. A choice, not a measurement.
// Design decision 22c.
inline constexpr Duration kAbortLimit = 5_s;
inline constexpr Duration kCallLimit = 1_s;  // how long an abort waits for another call to return

enum class NcclKind : std::uint8_t {
  kSend = 0,
  kReceive = 1,
  kBroadcast = 2,
  kReduce = 3,
  kAllReduce = 4,
  kAllGather = 5,
  kGather = 6,
  kScatter = 7,
};
inline constexpr int kNcclKindCount = 8;

// `count` elements of NCCL's `dtype`, `part_bytes` in all, at each address.
struct NcclTransfer {
  NcclKind kind = NcclKind::kSend;
  int peer = 0;   // to, from, or the root: a rank of the communicator
  int dtype = 1;  // bytes
  int op = 0;
  std::size_t count = 0;
  std::size_t part_bytes = 0;
  std::vector<std::uintptr_t> in;       // addresses to read: one, or one for each rank
  std::vector<std::uintptr_t> out;      // addresses to write: one, or one for each rank
  std::optional<std::uintptr_t> after;  // a stream whose current work must end first
};

struct NcclPlace {
  NcclId id;
  int rank = 0;
  int size = 0;
  int device = 0;
};

class NcclBond final : public Companion, public std::enable_shared_from_this<NcclBond> {
 public:
  enum class Next : std::uint8_t { kNothing, kLook, kAsk, kOver };
  struct Issued {
    OperationHandle operation;
    std::uint64_t turn = 0;
  };

  NcclBond(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclQueue> queue,
           const std::shared_ptr<World>& world, const NcclPlace& place);
  // Begins to meet the other members. Done when all have come. If it breaks, error() says why, and
  // the world goes on.
  [[nodiscard]] OperationHandle join();
  // Issues a transfer in `turn`, or in the next free turn without one, as the member of rank 0
  // does. REQUIRES: join() is done. All members of the transfer issue it, with the same size and
  // dtype.
  [[nodiscard]] Result<Issued> issue(NcclTransfer transfer, std::optional<std::uint64_t> turn);
  void handle_end(Ending ending) override;
  [[nodiscard]] std::string error();
  [[nodiscard]] bool is_leaked();  // True if a kernel may write to operations' memory for ever

  [[nodiscard]] Next step();

 private:
  struct Waiting {
    OperationId operation;
    NcclTransfer transfer;
    CudaEvent event = nullptr;
  };
  struct Ring {  // the argument of the host function behind an operation on the stream
    std::shared_ptr<NcclBond> bond;
    OperationId operation;
  };

  [[nodiscard]] Next advance();
  [[nodiscard]] bool begin();
  [[nodiscard]] Next poll_joining();
  [[nodiscard]] bool is_sound();
  [[nodiscard]] Next launch(const Waiting& waiting);
  [[nodiscard]] NcclResult call(const NcclTransfer& transfer);
  [[nodiscard]] Next poll_launching();
  void finish_all();
  void fail(const Error& error);
  void end_operation(OperationId operation, Operation::State state);
  [[nodiscard]] Result<CudaEvent> record_event(std::uintptr_t stream) const;
  static void handle_passed(void* ring);
  void tear_down(Ending ending);
  void tear_down_communicator(Ending ending);
  [[nodiscard]] bool is_finalized();

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<NcclQueue> queue_;
  const std::weak_ptr<World> world_;
  const NcclPlace place_;
  OperationId joining_;

  // Only the NCCL thread touches these, and tear_down_communicator() once no call is in progress.
  enum class State : std::uint8_t { kBegun, kJoining, kReady, kLaunching };
  State state_ = State::kBegun;
  NcclComm comm_ = nullptr;  // NCCL may write it again while it joins
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  OperationId launching_;
  std::optional<std::int64_t> unsound_since_ns_;

  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::map<std::uint64_t, Waiting> waiting_;  // by turn
  std::uint64_t turns_given_ = 0;
  std::uint64_t turns_begun_ = 0;
  std::set<OperationId> open_;
  std::set<OperationId> launched_;  // given to NCCL, and not ended yet
  std::vector<OperationId> finished_;
  std::string error_;
  bool is_calling_ = false;
  // In this order. kQuiet: no call to NCCL is in progress. A call that hangs skips it.
  enum class Phase : std::uint8_t { kRunning, kEnded, kQuiet, kDown };
  Phase phase_ = Phase::kRunning;
  bool is_leaked_ = false;
};

}  // namespace hoplite::worlds
