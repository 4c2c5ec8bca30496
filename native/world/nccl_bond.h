// One communicator of NCCL between members of a world, with a stream of its own. What its members
// have agreed on is issued here in the order that its first member gives (a turn for each
// operation), so that no kernel waits for a peer that never comes, and no two wait crosswise.
//  - step() and what it calls are the NCCL thread's; the rest is any thread's.
//  - An operation has succeeded if the stream has got past it, NCCL reports no error, and the world
//    has not ended. When the world ends, operations end when nothing can touch their memory any
//    more: when their kernels have ended, or the communicator was aborted, or that has taken
//    kAbortLimit and it is leaked.
//  - The world's lock is never taken with this one's held.
// NCCL's user guide, "Fault tolerance"; design decision 22c. SPDX-License-Identifier: Apache-2.0
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
#include "world/nccl_library.h"
#include "world/nccl_thread.h"
#include "world/world.h"

namespace hoplite::worlds {

// How long an abort may take before its communicator is given up; a choice, not a measurement.
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
  std::vector<std::uintptr_t> in;       // what is read: one, or of scatter's root one for each rank
  std::vector<std::uintptr_t> out;      // what is written: one, or one for each rank
  std::optional<std::uintptr_t> after;  // a stream whose work of now comes first
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
  // Begins to meet the other members; done when all have come. If it breaks, error() knows why, and
  // the world goes on.
  [[nodiscard]] OperationHandle join();
  // Without a turn, by the member of rank 0, it is the next one's. REQUIRES: join() is done, and
  // all members of the transfer issue theirs, of the same size and dtype.
  [[nodiscard]] Result<Issued> issue(NcclTransfer transfer, std::optional<std::uint64_t> turn);
  void handle_end(Ending ending) override;
  [[nodiscard]] std::string error();
  [[nodiscard]] bool is_leaked();  // something may write to its operations' memory for ever

  [[nodiscard]] Next step();

 private:
  struct Waiting {
    OperationId operation;
    NcclTransfer transfer;
    CudaEvent event = nullptr;
  };
  struct Ring {  // what a stream hands back when it has got so far
    std::shared_ptr<NcclBond> bond;
    OperationId operation;
  };

  [[nodiscard]] Next advance();
  [[nodiscard]] bool begin();
  [[nodiscard]] Next hear_joined();
  [[nodiscard]] bool is_sound();
  [[nodiscard]] Next launch(const Waiting& waiting);
  [[nodiscard]] NcclResult call(const NcclTransfer& transfer);
  [[nodiscard]] Next hear_launched();
  void finish_all();
  void fail(const Error& error);
  void end_operation(OperationId operation, Operation::State state);
  [[nodiscard]] Result<CudaEvent> now_of(std::uintptr_t stream) const;
  static void rang(void* ring);
  void see_down(Ending ending);
  void take_down(Ending ending);
  [[nodiscard]] bool is_finalized();

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<NcclQueue> queue_;
  const std::weak_ptr<World> world_;
  const NcclPlace place_;
  OperationId joining_;

  // Of the NCCL thread, and of take_down() once no call is under way.
  enum class State : std::uint8_t { kBegun, kJoining, kReady, kLaunching };
  State state_ = State::kBegun;
  NcclComm comm_ = nullptr;  // NCCL may write it again while it joins
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  OperationId launching_;
  std::optional<std::int64_t> unsound_since_ns_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::map<std::uint64_t, Waiting> waiting_;  // by turn
  std::uint64_t turns_given_ = 0;
  std::uint64_t turns_begun_ = 0;
  std::set<OperationId> open_;
  std::set<OperationId> launched_;  // what NCCL was asked for, until it has happened
  std::vector<OperationId> finished_;
  std::string error_;
  bool is_calling_ = false;
  bool is_ended_ = false;
  bool is_quiet_ = false;  // it has ended, and no call to NCCL is under way
  bool is_down_ = false;
  bool is_leaked_ = false;
};

}  // namespace hoplite::worlds
