// SPDX-License-Identifier: Apache-2.0
// A few engines wired to each other in memory, without wire/: real arenas, one queue of events, and
// verbs. Time passes only when a test says so. A test can deliver events one at a time, and so
// interrupt an operation in every state it passes through.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/engine/engine.h"
#include "plan/links/membership.h"

namespace hoplite {

inline constexpr std::uint32_t kTestBlock = 1024;

inline ObjectMeta floats_meta(std::uint64_t size_bytes) {
  return {size_bytes, 0, {{DType::kFloat32, size_bytes}}, "float32"};
}

// `blocks` blocks of one float, so that sums can be told at a glance.
inline Bytes floats(float value, std::uint64_t size_bytes = 4 * kTestBlock) {
  Bytes bytes(size_bytes);
  for (std::size_t at = 0; at + sizeof value <= size_bytes; at += sizeof value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  return bytes;
}

class Nodes {
 public:
  using Tune = std::function<void(EngineConfig&)>;
  static constexpr ClientId kClient{1};

  explicit Nodes(std::size_t count, const Tune& tune = {}) {
    for (std::size_t i = 0; i < count; ++i) {
      EngineConfig config;
      config.node = NodeId{i + 1};
      config.arena_bytes = 1_MiB;
      config.block_bytes_min = config.block_bytes_max = kTestBlock;
      config.inline_bytes_max = 256;
      config.credit_bytes = 0;  // so that credit_blocks_min decides
      if (tune) tune(config);
      nodes_.push_back({std::make_unique<Engine>(config, i), Bytes(config.arena_bytes), {}, true});
      members_.push_back({config.node, config.incarnation, {"rail"}});
    }
    change_view();
  }

  // ---- verbs of clients ----
  // A large object is written as far as `blocks`, and sealed when that is all of it.
  RequestId put(std::size_t node, const ObjectId& object, Bytes content, std::uint32_t life = 1,
                std::uint32_t blocks = 1U << 20) {
    const ObjectMeta meta = floats_meta(content.size());
    const RequestId request = next_request();
    const bool small = content.size() <= 256;
    Bytes payload = small ? content : Bytes{};
    if (!small) writes_[request] = {object, Incarnation{life}, std::move(content), blocks};
    command(node, request, PutCommand{object, Incarnation{life}, meta, std::move(payload)});
    return request;
  }
  RequestId get(std::size_t node, const ObjectId& object, bool exists = false) {
    return ask(node, GetCommand{object, exists});
  }
  RequestId erase(std::size_t node, const ObjectId& object, std::uint32_t upto = 0) {
    return ask(node, DeleteCommand{object, Incarnation{upto}});
  }
  void release(std::size_t node, const ObjectId& object, std::uint32_t life = 1) {
    ask(node, ReleaseCommand{object, Incarnation{life}});
  }
  RequestId reduce(std::size_t node, const ObjectId& target, std::uint32_t sources,
                   std::uint32_t count, ReduceOp op = ReduceOp::kSum) {
    return ask(node, ReduceCommand{target, op, sources, count});
  }
  void confirm(std::size_t node, const ObjectId& target, std::uint32_t index,
               const ObjectId& source) {
    ask(node, ReduceSourceCommand{target, ReduceSource{index, source, {}, false}});
  }
  void cancel(std::size_t node, RequestId request) {
    if (const auto put = writes_.find(request); put != writes_.end()) put->second.blocks = 0;
    command(node, request, CancelCommand{objects_.at(request)});
  }
  void lose_client(std::size_t node) { ask(node, ClientLostCommand{}); }
  RequestId ask(std::size_t node, CommandBody body) {
    const RequestId request = next_request();
    command(node, request, std::move(body));
    return request;
  }

  // ---- verbs of the network ----
  void cut(std::size_t a, std::size_t b) {
    std::erase_if(events_, [&](const Event& e) {
      return (e.from == a && e.to == b) || (e.from == b && e.to == a);
    });
    links_.erase(link(a, b));
    push(a, a, LinkDown{NodeId{b + 1}});
    push(b, b, LinkDown{NodeId{a + 1}});
  }
  void heal(std::size_t a, std::size_t b) {
    links_.insert(link(a, b));
    push(a, a, LinkUp{NodeId{b + 1}, members_life(b)});
    push(b, b, LinkUp{NodeId{a + 1}, members_life(a)});
  }
  // Its links break, all hear of its death, and the next view is without it.
  void kill(std::size_t node) {
    const NodeId dead{node + 1};
    const Incarnation life = members_life(node);
    nodes_[node].alive = false;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive && links_.contains(link(i, node))) cut(i, node);
      if (nodes_[i].alive) push(i, i, PeerDead{dead, life});
    }
    std::erase_if(events_, [&](const Event& e) { return e.to == node; });
    run();
    std::erase_if(members_, [&](const Member& m) { return m.node == dead; });
    change_view();
  }

  // ---- time ----
  // Delivers one event. Returns false when nothing is under way.
  bool step() {
    for (std::size_t i = 0; i < nodes_.size() && events_.empty(); ++i) {
      const auto at = nodes_[i].alive ? nodes_[i].engine->poll_timeout() : std::nullopt;
      if (!at || *at > now_) continue;
      nodes_[i].engine->handle_timeout(now_);
      drain(i);
      return true;
    }
    if (events_.empty()) return false;
    const Event event = std::move(events_.front());
    events_.pop_front();
    now_ = now_ + 1_us;
    if (nodes_[event.to].alive) event.deed();
    return true;
  }
  void run() {
    for (int steps = 0; step(); ++steps) {
      ASSERT_LT(steps, 200'000) << "the nodes never come to rest";
    }
  }
  void elapse(Duration duration) {
    const Instant end = now_ + duration;
    for (int turns = 0; turns < 20'000; ++turns) {
      run();
      std::optional<Instant> next;
      for (const Node& node : nodes_) {
        const auto at = node.alive ? node.engine->poll_timeout() : std::nullopt;
        if (at && (!next || *at < *next)) next = at;
      }
      if (!next || *next > end) break;
      now_ = std::max(now_, *next);
    }
    now_ = std::max(now_, end);
    run();
  }

  // ---- what has come of it ----
  [[nodiscard]] const std::vector<Reply>& replies(RequestId request) { return replies_[request]; }
  template <typename T>
  [[nodiscard]] bool is(RequestId request) {
    return !replies_[request].empty() && std::holds_alternative<T>(replies_[request].back());
  }
  [[nodiscard]] bool is_sealed(RequestId put) {
    return is<Done>(writes_.contains(put) ? done_of(put) : put);
  }
  [[nodiscard]] Code code(RequestId request) { return error(request).code; }
  [[nodiscard]] std::string text(RequestId request) { return error(request).text; }
  [[nodiscard]] Error error(RequestId request) {  // kOk: it has none
    if (replies_[request].empty()) return {};
    return error_of(replies_[request].back()).value_or(Error{});
  }
  // The bytes that a get was answered with, as they were in the arena at that moment.
  [[nodiscard]] const Bytes& fetched(RequestId request) { return fetched_[request]; }
  [[nodiscard]] EngineStats stats(std::size_t node) const { return nodes_[node].engine->stats(); }
  [[nodiscard]] Engine& engine(std::size_t node) { return *nodes_[node].engine; }
  [[nodiscard]] bool is_alive(std::size_t node) const { return nodes_[node].alive; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] Instant now() const { return now_; }

  // An id whose home is `node`; another one for each `tag`.
  [[nodiscard]] ObjectId object_at(std::size_t node, std::uint8_t tag = 0) const {
    Membership view{NodeId{1}};
    EXPECT_TRUE(view.handle_view(Epoch{1000}, members_));
    ObjectId id;
    id.bytes[0] = tag;
    while (view.home_of(id) != NodeId{node + 1}) ++id.bytes[27];
    return id;
  }

 private:
  struct Node {
    std::unique_ptr<Engine> engine;
    Bytes arena;
    std::map<TransferId, OpenReceive> receives;
    bool alive = true;
  };
  struct Event {
    std::size_t from, to;
    std::function<void()> deed;
  };
  struct Write {
    ObjectId object;
    Incarnation incarnation;
    Bytes content;
    std::uint32_t blocks;
  };

  static std::pair<std::size_t, std::size_t> link(std::size_t a, std::size_t b) {
    return {std::min(a, b), std::max(a, b)};
  }
  static RequestId done_of(RequestId put) { return RequestId{put.value + 1'000'000}; }
  RequestId next_request() { return RequestId{++last_request_}; }
  [[nodiscard]] Incarnation members_life(std::size_t node) const {
    for (const Member& member : members_) {
      if (member.node.value == node + 1) return member.incarnation;
    }
    return {};
  }

  void change_view() {
    ++epoch_.value;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].alive) continue;
      nodes_[i].engine->handle_command({{}, {}, SetViewCommand{epoch_, members_}}, now_);
      drain(i);
    }
    run();
  }
  void command(std::size_t node, RequestId request, CommandBody body) {
    std::visit(
        [&](const auto& asked) {
          if constexpr (requires { asked.object; }) objects_[request] = asked.object;
          if constexpr (requires { asked.op; }) objects_[request] = asked.target;
          if constexpr (requires { asked.channel; }) objects_[request] = asked.channel;
        },
        body);
    nodes_[node].engine->handle_command({kClient, request, std::move(body)}, now_);
    drain(node);
  }
  void push(std::size_t from, std::size_t to, IoEvent event) {
    events_.push_back({from, to, [this, to, event = std::move(event)] {
                         nodes_[to].engine->handle_io(event, now_);
                         drain(to);
                       }});
  }
  void drain(std::size_t node) {
    while (auto action = nodes_[node].engine->poll_action()) {
      std::visit([&](auto& deed) { perform(node, deed); }, *action);
    }
    for (const Node& one : nodes_) {
      if (one.alive) one.engine->check_invariants();
    }
  }
  [[nodiscard]] Bytes read(std::size_t node, const Extent& extent) const {
    const auto first = nodes_[node].arena.begin() + static_cast<std::ptrdiff_t>(extent.offset);
    return {first, first + static_cast<std::ptrdiff_t>(extent.size_bytes)};
  }
  void write(std::size_t node, std::uint64_t offset, const Bytes& bytes) {
    ASSERT_LE(offset + bytes.size(), nodes_[node].arena.size());
    std::copy(bytes.begin(), bytes.end(),
              nodes_[node].arena.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  void perform(std::size_t node, SendMessage& send) {
    const std::size_t to = send.to.value - 1;
    if (!links_.contains(link(node, to))) return;
    Bytes payload = send.payload ? read(node, *send.payload) : Bytes{};
    push(node, to, MessageIn{NodeId{node + 1}, std::move(send.message), std::move(payload)});
  }
  void perform(std::size_t node, SendBlock& send) {
    const std::size_t to = send.to.value - 1;
    if (!links_.contains(link(node, to))) return;
    events_.push_back(
        {node, to, [this, node, to, header = send.header, bytes = read(node, send.extent)] {
           const auto it = nodes_[to].receives.find(header.transfer);
           if (it != nodes_[to].receives.end()) land(node, to, it->second, header, bytes);
         }});
    events_.push_back(
        {to, node,
         [this, node, done = BlockSent{send.to, send.rail, send.extent.size_bytes, send.ticket}] {
           nodes_[node].engine->handle_io(done, now_);
           drain(node);
         }});
  }
  void land(std::size_t from, std::size_t to, const OpenReceive& open, const BlockHeader& header,
            const Bytes& bytes) {
    ASSERT_EQ(open.from, NodeId{from + 1});
    ASSERT_EQ(open.object, header.object);
    ASSERT_EQ(open.incarnation, header.incarnation);
    ASSERT_EQ(open.target_epoch, header.target_epoch);
    const auto block = static_cast<std::uint32_t>(header.offset / open.meta.block_bytes);
    const std::uint64_t slot = block / open.stripe_count % std::max(open.slots, 1U);
    write(to, open.base.offset + (open.slots > 0 ? slot * open.meta.block_bytes : header.offset),
          bytes);
    nodes_[to].engine->handle_io(BlockLanded{NodeId{from + 1}, open.transfer, BlockIndex{block}},
                                 now_);
    drain(to);
  }
  void perform(std::size_t node, OpenReceive& open) { nodes_[node].receives[open.transfer] = open; }
  void perform(std::size_t node, CloseReceive& close) {
    nodes_[node].receives.erase(close.transfer);
    push(node, node, ReceiveClosed{close.from, close.transfer});
  }
  void perform(std::size_t node, Fold& fold) {
    ASSERT_EQ(fold.into.size_bytes, fold.from.size_bytes);
    Bytes result = read(node, fold.from);
    const Bytes old = read(node, fold.into);
    for (std::size_t at = 0; at < result.size() && !fold.first; at += sizeof(float)) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, old.data() + at, sizeof a);
      std::memcpy(&b, result.data() + at, sizeof b);
      a = fold.op == ReduceOp::kMax ? std::max(a, b) : a + b;
      std::memcpy(result.data() + at, &a, sizeof a);
    }
    write(node, fold.into.offset, result);
  }
  void perform(std::size_t node, Finish& finish) {  // of a mean of float32
    ASSERT_EQ(finish.dtype, DType::kFloat32);
    ASSERT_EQ(finish.into, finish.from);
    Bytes result = read(node, finish.from);
    for (std::size_t at = 0; at < result.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, result.data() + at, sizeof value);
      value /= static_cast<float>(finish.sources);
      std::memcpy(result.data() + at, &value, sizeof value);
    }
    write(node, finish.into.offset, result);
  }
  void perform(std::size_t node, WriteInline& inlined) {
    write(node, inlined.extent.offset, inlined.payload);
  }
  void perform(std::size_t node, ReplyToClient& reply) {
    replies_[reply.request].push_back(reply.reply);
    if (const auto* got = std::get_if<Fetched>(&reply.reply))
      fetched_[reply.request] = read(node, got->extent);
    if (const auto* range = std::get_if<Reserved>(&reply.reply))
      fill(node, reply.request, range->extent);
  }
  void perform(std::size_t node, Connect& connect) {
    const std::size_t to = connect.member.node.value - 1;
    if (nodes_[to].alive && node < to) heal(node, to);
  }
  void perform(std::size_t, Disconnect&) {}
  void perform(std::size_t, ReportDeath&) {}
  void perform(std::size_t, TellListing&) {}
  void perform(std::size_t, ReportDrained&) {}
  void perform(std::size_t, SpillJob&) { FAIL() << "nothing is to be spilled here"; }
  void perform(std::size_t, RebuildJob&) { FAIL() << "nothing is to be rebuilt here"; }

  // The client writes block by block, and says so after each.
  void fill(std::size_t node, RequestId request, const Extent& extent) {
    const std::uint64_t size = writes_.at(request).content.size();
    for (std::uint32_t block = 0; std::uint64_t{block} * kTestBlock < size; ++block) {
      events_.push_back(
          {node, node, [=, this] { write_block(node, request, extent.offset, block); }});
    }
  }
  void write_block(std::size_t node, RequestId request, std::uint64_t base, std::uint32_t block) {
    const Write& put = writes_.at(request);
    if (block >= put.blocks) return;
    const std::uint64_t first = std::uint64_t{block} * kTestBlock;
    const std::uint64_t last = std::min<std::uint64_t>(put.content.size(), first + kTestBlock);
    write(node, base + first,
          {put.content.begin() + static_cast<std::ptrdiff_t>(first),
           put.content.begin() + static_cast<std::ptrdiff_t>(last)});
    const RequestId answer = last == put.content.size() ? done_of(request) : RequestId{0};
    command(node, answer, WroteCommand{put.object, put.incarnation, last, false});
  }

  std::vector<Node> nodes_;
  std::vector<Member> members_;
  std::set<std::pair<std::size_t, std::size_t>> links_;
  std::deque<Event> events_;
  std::map<RequestId, std::vector<Reply>> replies_;
  std::map<RequestId, Bytes> fetched_;
  std::map<RequestId, Write> writes_;
  std::map<RequestId, ObjectId> objects_;  // that each is about
  std::uint64_t last_request_ = 0;
  Epoch epoch_;
  Instant now_{1'000'000};
};

}  // namespace hoplite
