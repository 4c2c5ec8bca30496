// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/siege.h"

#include <array>
#include <utility>
#include <variant>

#include "base/check.h"
#include "plan/links/membership.h"

namespace hoplite::sim {
namespace {

constexpr NodeId kSelf{1}, kLiar{2}, kSilent{3};
constexpr Incarnation kLife{1};
constexpr ClientId kHonest{1}, kLyingClient{2};
constexpr std::uint64_t kArenaBytes = 1_MiB;
constexpr std::uint32_t kBlockBytes = 1024;
constexpr std::uint64_t kBytes = 16'000;  // of most objects

std::vector<Member> all_members() {
  return {{kSelf, kLife, {}}, {kLiar, kLife, {}}, {kSilent, kLife, {}}};
}

ObjectMeta floats(std::uint64_t size_bytes, std::uint32_t block_bytes = kBlockBytes) {
  return {size_bytes, block_bytes, {{DType::kFloat32, size_bytes}}, ""};
}

// Few names, so that lies match true objects: mostly the first object of each node's part of the
// directory, and one shape.
Liar::Pools pools() {
  constexpr std::size_t kOften = 8;
  Membership view(kSelf);
  HOPLITE_CHECK(view.handle_view(Epoch{1}, all_members()));
  Liar::Pools pools;
  std::map<NodeId, int> counts;
  ObjectId id;
  while (counts[kSelf] < 3 || counts[kLiar] < 3 || counts[kSilent] < 3) {
    if (++id.bytes[0] == 0) ++id.bytes[1];
    const int before = counts[view.home_of(id)]++;
    if (before < 3)
      pools.objects.insert(pools.objects.end(), before == 0 ? kOften : std::size_t{1}, id);
  }
  pools.metas = {ObjectMeta{},
                 floats(0),
                 floats(256),
                 floats(8'000),
                 floats(400'000, 64),
                 floats(900'000),
                 floats(1ULL << 39, 1U << 20),
                 {kBytes, kBlockBytes, {{DType::kBfloat16, kBytes}}, "another"}};
  pools.metas.insert(pools.metas.end(), 2 * kOften, floats(kBytes));
  pools.transfers = {TransferId{0}, TransferId{1}, TransferId{2}};
  return pools;
}

EngineConfig config() {
  EngineConfig config;
  config.node = kSelf;
  config.arena_bytes = kArenaBytes;
  config.block_bytes_min = kBlockBytes;
  config.block_bytes_max = kBlockBytes;
  config.inline_bytes_max = 1'000;
  config.parked_messages_max = 8;
  config.deletes_max = 8;
  config.recent_objects_max = 8;
  config.parked_bytes_max = 2 * kControlFrameBytesMax;
  config.when_full = WhenFull::kSpill;
  return config;
}

void check_in_arena(const Extent& extent) {
  HOPLITE_CHECK(extent.offset <= kArenaBytes);
  HOPLITE_CHECK(extent.size_bytes <= kArenaBytes - extent.offset);
}

}  // namespace

Siege::Siege(Liar::Draw draw) : draw_(draw), liar_(pools(), std::move(draw)), engine_(config(), 7) {
  engine_.handle_command({ClientId{0}, RequestId{0}, SetViewCommand{epoch_, all_members()}}, now_);
  for (const NodeId peer : {kLiar, kSilent}) {
    engine_.handle_io(LinkUp{peer, kLife}, now_);
    engine_.handle_io(MessageIn{peer, Message{epoch_, {}, {}, ResyncDone{}}, {}}, now_);
  }
  perform_all();
}

void Siege::step() {
  switch (draw_() % 16) {
    case 0:
      pass_time();
      break;
    case 1:
      change_view();
      break;
    case 2:
    case 3:
    case 4:
      io();
      break;
    case 5:
    case 6:
      honest_command();
      break;
    case 7:
    case 8:
      if (auto command = liar_.command()) {
        const RequestId request{1 + draw_() % 4U};
        engine_.handle_command({kLyingClient, request, std::move(*command)}, now_);
      }
      break;
    default: {
      const std::uint8_t ahead = draw_();
      const Epoch epoch{epoch_.value + (ahead < 16 ? 1U : 0U) - (ahead == 255 ? 1U : 0U)};
      if (auto said = liar_.message(kLiar, epoch)) engine_.handle_io(std::move(*said), now_);
      break;
    }
  }
  perform_all();
  engine_.check_invariants();
}

void Siege::honest_command() {
  const auto& objects = liar_.pools().objects;
  const ObjectId object = objects[draw_() % objects.size()];
  const RequestId request{++last_request_};
  const auto ask = [&](CommandBody body) {
    engine_.handle_command({kHonest, request, std::move(body)}, now_);
  };
  switch (draw_() % 8) {
    case 0:
      return ask(PutCommand{object, kLife, floats(kBytes), {}});
    case 1:
      return ask(WroteCommand{object, kLife, kBytes, false});
    case 2:
      if (draw_() % 8 != 0) return;
      return ask(DeleteCommand{object, {}});
    case 3: {
      ReduceCommand reduce;
      reduce.target = object;
      reduce.source_count = reduce.count = 2;
      return ask(reduce);
    }
    case 4: {
      const std::uint32_t index = draw_() % 2;
      return ask(ReduceSourceCommand{
          object, {index, objects[draw_() % objects.size()], {}, false, kNoNode, false}, true});
    }
    case 5: {
      RebuildCommand rebuild{object, kLife, floats(kBytes), 0, {objects[0], kLife}, {}};
      rebuild.meta.block_bytes = 8192;
      rebuild.deltas.push_back({objects[draw_() % objects.size()], kLife});
      return ask(rebuild);
    }
    case 6: {
      Excerpt part{object, floats(kBytes), {objects[draw_() % objects.size()], kLife}, {}};
      if (draw_() % 8 != 0) part.runs.push_back({0, 64, 64, 128, kBytes / 128});
      return ask(ExcerptCommand{part, draw_() % 2 == 0});
    }
    default:
      return ask(GetCommand{object, true});
  }
}

// Gives the engine an event of io/: about a block, a file or a link.
void Siege::io() {
  const std::uint8_t kind = draw_() % 8;
  if (kind < 4 && !receives_.empty()) {
    const auto which = static_cast<std::ptrdiff_t>(draw_() % receives_.size());
    const OpenReceive open = std::next(receives_.begin(), which)->second;
    const std::uint32_t block = open.stripe.value + draw_() % 4U * open.stripe_count;
    if (block >= open.meta.block_count()) return;
    engine_.handle_io(BlockLanded{open.from, open.transfer, BlockIndex{block}}, now_);
  } else if (kind == 5 && !closed_.empty()) {
    std::swap(closed_[draw_() % closed_.size()], closed_.back());
    const CloseReceive closed = closed_.back();
    closed_.pop_back();
    engine_.handle_io(ReceiveClosed{closed.from, closed.transfer}, now_);
  } else if (kind < 6 && !unsent_.empty()) {
    std::swap(unsent_[draw_() % unsent_.size()], unsent_.back());  // rails keep no order
    const BlockSent sent = unsent_.back();
    unsent_.pop_back();
    engine_.handle_io(sent, now_);
  } else if (kind == 6 && !spills_.empty()) {
    const SpillId spill = spills_.front();
    spills_.erase(spills_.begin());
    engine_.handle_io(SpillDone{spill, draw_() % 8 == 0 ? "no space" : ""}, now_);
  } else if (kind == 4 && !rebuilds_.empty()) {
    const RebuildId rebuild = rebuilds_.front();
    rebuilds_.erase(rebuilds_.begin());
    const std::uint8_t end = draw_() % 8;
    engine_.handle_io(RebuildDone{rebuild, end > 3, end == 0 ? "corrupt" : ""}, now_);
  } else if (kind == 7) {
    engine_.handle_io(LinkDown{kLiar}, now_);
    std::erase_if(unsent_, [](const BlockSent& sent) { return sent.to == kLiar; });
    perform_all();
    engine_.handle_io(LinkUp{kLiar, kLife}, now_);
  }
}

void Siege::pass_time() {
  now_ = now_ + std::array{1_ms, 30_ms, 1_s, 3_s}[draw_() % 4];
  engine_.handle_timeout(now_);
}

// The silent node goes, or comes back.
void Siege::change_view() {
  if (draw_() % 16 != 0) return;
  ++epoch_.value;
  std::vector<Member> members = all_members();
  if (draw_() % 2 == 0) members.pop_back();
  const bool is_there = members.size() == 3;
  engine_.handle_command({ClientId{0}, RequestId{0}, SetViewCommand{epoch_, members}}, now_);
  perform_all();
  if (is_there) engine_.handle_io(LinkUp{kSilent, kLife}, now_);
  const auto done = [&](NodeId peer) {
    engine_.handle_io(MessageIn{peer, Message{epoch_, {}, {}, ResyncDone{}}, {}}, now_);
  };
  if (is_there) done(kSilent);
  if (draw_() % 4 != 0) done(kLiar);
}

void Siege::perform_all() {
  while (const auto action = engine_.poll_action()) perform(*action);
}

void Siege::perform(const Action& action) {
  if (const auto* open = std::get_if<OpenReceive>(&action)) {
    check_in_arena(open->base);
    const std::uint64_t needed = open->slots == 0
                                     ? open->meta.size_bytes
                                     : std::uint64_t{open->slots} * open->meta.block_bytes;
    HOPLITE_CHECK(needed <= open->base.size_bytes);
    HOPLITE_CHECK(open->stripe.value < open->stripe_count);
    receives_[{open->from, open->transfer}] = *open;
    auto& transfers = liar_.pools().transfers;
    if (transfers.size() < 16) transfers.push_back(open->transfer);
  } else if (const auto* close = std::get_if<CloseReceive>(&action)) {
    receives_.erase({close->from, close->transfer});
    closed_.push_back(*close);
  } else if (const auto* block = std::get_if<SendBlock>(&action)) {
    check_in_arena(block->extent);
    unsent_.push_back({block->to, block->rail, block->extent.size_bytes, block->ticket});
  } else if (const auto* message = std::get_if<SendMessage>(&action)) {
    if (message->payload) check_in_arena(*message->payload);
  } else if (const auto* fold = std::get_if<Fold>(&action)) {
    check_in_arena(fold->into);
    check_in_arena(fold->from);
  } else if (const auto* finish = std::get_if<Finish>(&action)) {
    check_in_arena(finish->into);
    check_in_arena(finish->from);
  } else if (const auto* write = std::get_if<WriteInline>(&action)) {
    check_in_arena(write->extent);
    HOPLITE_CHECK(write->payload.size() <= write->extent.size_bytes);
  } else if (const auto* spill = std::get_if<SpillJob>(&action)) {
    if (spill->way == SpillWay::kFree) return;
    check_in_arena(spill->arena);
    spills_.push_back(spill->spill);
  } else if (const auto* rebuild = std::get_if<RebuildJob>(&action)) {
    if (rebuild->way == RebuildWay::kForget) return;
    for (const Extent& delta : rebuild->deltas) check_in_arena(delta);
    check_in_arena(rebuild->base);
    check_in_arena(rebuild->target);
    rebuilds_.push_back(rebuild->rebuild);
  }
}

}  // namespace hoplite::sim
