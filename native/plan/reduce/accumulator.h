// SPDX-License-Identifier: Apache-2.0
// An owner's part of a reduce: which members have been folded into which block (decision 5).
// Bitmaps over source indices make every fold idempotent, so no member counts twice, in any order
// and after any reconnect. A block is whole when it holds every member of the sealed set, and final
// once it is finished. A newer target epoch voids only the blocks that hold a removed member; they
// are folded and finished anew. In a deterministic fold it voids only the sums with that member.
// Invariant: only owned blocks are known, because another owner's block may be received in the same
// place.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "plan/messages.h"
#include "plan/reduce/pairwise.h"

namespace hoplite {

class Accumulator {
 public:
  struct Member {
    ReduceSource source;
    NodeId sender = kNoNode;  // its holder, once located
    NodeId failed = kNoNode;  // a former holder that can't serve
    bool located = false;
    bool whole = false;                 // spread over nodes: fetched here whole, then folded
    std::set<StripeIndex> pulled = {};  // stripes of it that are in flight
  };

  explicit Accumulator(const ReduceOwn& own) { handle_own(own); }

  // Adopts members, stripes and epochs. Returns false for news of an older epoch.
  bool handle_own(const ReduceOwn& own);

  // Takes over a stripe from an owner that died. Its leading blocks, already received from that
  // owner, are final and must not be written again while they are being sent.
  void accept_final(StripeIndex stripe, std::uint32_t blocks);

  // Books `member` on `block`. Returns the steps to fold; nothing if the block already holds it.
  std::optional<std::vector<FoldStep>> take(std::uint32_t member, BlockIndex block);
  // The same for members that were combined: they come in together or not at all.
  // REQUIRES: at least one; more than one only if can_combine().
  std::optional<std::vector<FoldStep>> take(std::span<const std::uint32_t> members,
                                            BlockIndex block);
  // True if a sender may combine some of its members. False where the order of the members is
  // fixed.
  [[nodiscard]] bool can_combine() const;
  // True if each block of the stripe lacks both members or neither. Cost: O(blocks that were
  // begun).
  [[nodiscard]] bool lacks_alike(std::uint32_t one, std::uint32_t other, StripeIndex stripe) const;
  // The first block (as a position in the stripe) that still lacks `member`.
  [[nodiscard]] std::optional<std::uint32_t> first_lacking(std::uint32_t member,
                                                           StripeIndex stripe) const;
  [[nodiscard]] bool lacks(std::uint32_t member, BlockIndex block) const;
  // True if a sixteenth of the owned blocks hold all known members; of more than a few members that
  // came one by one, if all blocks do.
  [[nodiscard]] bool has_begun() const;
  // Returns the stripe's next whole block, in order: after these steps its fold is in cell 0. The
  // caller must finish the block, because it counts as final after this call.
  struct Whole {
    BlockIndex block;
    std::vector<FoldStep> steps;
  };
  std::optional<Whole> poll_whole(StripeIndex stripe);
  // Leading blocks of the stripe that are final.
  [[nodiscard]] std::uint32_t final_blocks(StripeIndex stripe) const;
  [[nodiscard]] bool is_folded(StripeIndex stripe) const;

  [[nodiscard]] const ReduceOwn& own() const { return own_; }
  [[nodiscard]] std::map<std::uint32_t, Member>& members() { return members_; }
  [[nodiscard]] const std::map<std::uint32_t, Member>& members() const { return members_; }

 private:
  struct Block {
    SourceSet taken;
    PairwiseFold pairs;  // of a deterministic fold
  };
  void begin_epoch(const ReduceOwn& own);
  void forget_unowned(const ReduceOwn& own);
  [[nodiscard]] PairwiseFold::Tree tree() const;
  [[nodiscard]] bool is_whole(BlockIndex block) const;
  void skip_final(StripeIndex stripe);
  void unfinish();
  [[nodiscard]] std::uint32_t total(StripeIndex stripe) const;

  ReduceOwn own_;  // without members
  std::map<std::uint32_t, Member> members_;
  SourceSet indices_;  // of members_
  std::map<BlockIndex, Block> folded_;
  std::set<BlockIndex> finished_;
  std::set<BlockIndex> received_;  // final in this epoch without having been folded here
  std::map<StripeIndex, std::uint32_t> final_;  // leading blocks that are final, in this epoch
};

}  // namespace hoplite
