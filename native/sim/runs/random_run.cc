// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/random_run.h"

#include <algorithm>
#include <iterator>

#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/runs/channel_work.h"

namespace hoplite::sim {
namespace {

constexpr Duration kFaultMax = 400_ms;  // of a link, a processor or a path
constexpr Duration kAnswerBound =
    15_s;  // after the last fault: graces of 1 and 2 s, many times over

constexpr std::uint64_t kSourcesMax = 6;    // of a reduce
constexpr std::size_t kVersionsMax = 6;     // that leave room for other objects
constexpr std::size_t kEntriesOfAName = 8;  // a reduce has branches
constexpr std::int64_t kMessagesOfARequest = 32;
constexpr std::int64_t kActionsOfABlock = 8;  // at each node it passes

enum class Fault {
  kCrash,
  kRestart,
  kJoin,
  kReset,
  kStall,
  kPause,
  kClient,
  kCancel,
  kSlow,
  kOrphan,
  kDrain
};
constexpr int kFaultCount = static_cast<int>(Fault::kDrain) + 1;

class Run {
 public:
  explicit Run(const RunOptions& options)
      : prng_(mix64(options.seed)),
        draw_(draw_run(options, prng_)),
        config_(draw_.cluster),
        cluster_(config_),
        channel_work_(cluster_, mix64(config_.seed ^ 0x6368616e)) {
    const bool are_honest = config_.lies_per_mille == 0 && !config_.liar;
    has_channels_ = are_honest && options.canary == Canary::kNone &&
                    (options.channels == Choice::kAlways ||
                     (options.channels == Choice::kDrawn && mix64(config_.seed ^ 1) % 3 == 0));
    has_early_gets_ =
        are_honest && options.canary == Canary::kNone && mix64(config_.seed ^ 2) % 2 == 0;
    for (int kind = 0; kind < kFaultCount; ++kind) {
      const bool may_be = options.canary == Canary::kNone || options.canary >= Canary::kObeyOldView;
      if (may_be && prng_.chance(50)) {
        faults_.push_back(static_cast<Fault>(kind));
      }
    }
    fault_percent_ = faults_.empty() ? 0 : static_cast<std::uint32_t>(prng_.below(30));
    steps_ = 30 + prng_.below(90);
    spacing_max_ = between(20'000, 20'000'000);
    size_max_ = config_.engine.arena_bytes / (draw_.has_small_arena ? 4 : 48);
    deletes_ = prng_.chance(60);
    puts_again_ = prng_.chance(40);
    announces_ = prng_.chance(40);
    if (config_.lies_per_mille > 0) cluster_.checker().expect_lies();
    if (config_.liar) {
      cluster_.checker().expect_liar(
          [this](const ObjectId& object) { return cluster_.is_honest(object); });
    }
    if (draw_.has_small_arena || config_.liar) cluster_.checker().allow_store_full();
  }

  RunResult run() {
    if (prng_.chance(70)) cluster_.run_for(100_ms);
    for (std::uint64_t i = 0; i < steps_ && ok(); ++i) {
      cluster_.run_for({static_cast<std::int64_t>(prng_.below(spacing_max_))});
      if (prng_.chance(fault_percent_)) {
        hurt();
      } else {
        work();
      }
      if (has_channels_) channel_work_.step();
      if (draw_.has_rebuilds && more_.chance(trusts_base() ? 50 : 15)) handle_versions();
    }
    if (config_.lies_per_mille > 0) {
      cluster_.run_for(5_s);  // no answer is owed, but no engine may fail
    } else {
      if (ok()) settle();
      if (config_.liar && ok()) end_lies();
      if (ok()) cluster_.finish();
    }
    RunResult result;
    result.failures = cluster_.checker().failures();
    result.events = cluster_.events();
    result.lies = cluster_.lie_count();
    for (const Request& request : cluster_.requests()) {
      if (!request.answered) continue;
      ++result.answered;
      if (cluster_.is_honest(request.object)) ++result.answered_honest;
    }
    result.summary = std::to_string(config_.nodes) + " nodes, " +
                     std::to_string(config_.engine.broadcast_stripes) + " stripes, " +
                     std::to_string(steps_) + " steps, " + std::to_string(fault_percent_) +
                     " % faults of " + std::to_string(faults_.size()) + " kinds" +
                     (draw_.has_small_arena ? ", small arenas" : "") +
                     (draw_.has_small_limits ? ", small limits" : "") +
                     (config_.turns.are_real ? ", real turns" : "") +
                     (config_.engine.when_full == WhenFull::kSpill ? ", spilling" : "") +
                     (config_.lies_per_mille > 0 ? ", lies" : "") +
                     (has_channels_ ? ", channels" : "") + (has_early_gets_ ? ", early gets" : "") +
                     (draw_.has_rebuilds ? ", rebuilds" : "") + (config_.liar ? ", a liar" : "");
    result.published = cluster_.channels().published_count();
    return result;
  }

 private:
  struct Source {
    ObjectId object;
    Request* made;  // by a put, or by a reduce before
  };
  struct ById {  // addresses differ from run to run
    using is_transparent = void;
    bool operator()(const Request* a, const Request* b) const { return a->id < b->id; }
  };

  std::uint64_t between(std::uint64_t least, std::uint64_t most) {
    return least + prng_.below(most - least + 1);
  }
  bool ok() { return cluster_.checker().failures().empty(); }

  // ---- choices: one draw for each statement, because compilers order arguments differently ----

  std::vector<std::size_t> live_nodes() {
    std::vector<std::size_t> live;
    for (std::size_t node = 0; node < cluster_.size(); ++node) {
      if (cluster_.is_alive(node)) live.push_back(node);
    }
    return live;
  }
  std::size_t some_node() {
    const auto live = live_nodes();
    return live[prng_.below(live.size())];
  }
  ClientId some_client() { return ClientId{between(1, 3)}; }
  std::uint64_t some_size() {
    const std::uint64_t inline_max = config_.engine.inline_bytes_max;
    switch (prng_.below(6)) {
      case 0:
        return prng_.below(4);
      case 1:
        return prng_.below(inline_max + 1);
      case 2:
        return inline_max + prng_.below(3) - 1;
      case 3: {
        const std::uint64_t blocks = between(1, 8);
        return std::min(size_max_, config_.engine.block_bytes_max * blocks + prng_.below(3) - 1);
      }
      default:
        return between(1, size_max_);
    }
  }
  ObjectId fresh() { return object_named(next_object_++); }
  // Any object that was ever named, or that never will be put.
  ObjectId pick_known() {
    return prng_.chance(5) ? fresh() : object_named(1 + prng_.below(next_object_));
  }

  // ---- work ----

  void work() {
    const std::uint64_t dice = prng_.below(100);
    if (dice < 30) {
      put();
    } else if (dice < 65) {
      gets();
    } else if (dice < 75) {
      release();
    } else if (dice < 80) {
      if (deletes_) erase();
    } else if (dice < 88) {
      start_reduce();
    } else {
      feed_reduces();
    }
  }

  void put() {
    PutOptions options;
    options.size_bytes = some_size();
    options.client = some_client();
    options.maps = options.size_bytes % 4 == 1;
    if (prng_.chance(25)) options.parts = cut(options.size_bytes, DType::kFloat32, DType::kOpaque);
    const bool again = puts_again_ && !attempts_.empty() && prng_.chance(30);
    // Like a retried task, the next attempt has the same name, another node and another size.
    auto attempt = again ? std::next(attempts_.begin(),
                                     static_cast<std::ptrdiff_t>(prng_.below(attempts_.size())))
                         : attempts_.try_emplace(fresh()).first;
    options.incarnation = Incarnation{++attempt->second};
    cluster_.put(some_node(), attempt->first, options);
  }

  // Two parts, the first of whole 64 bytes; one part where there is no room for two.
  std::vector<Part> cut(std::uint64_t size_bytes, DType first, DType second) {
    if (size_bytes < 128) return {};
    const std::uint64_t at = 64 * between(1, (size_bytes - 8) / 64);
    return {{first, at}, {second, size_bytes - at}};
  }

  void gets() {
    const ObjectId object = pick_known();
    const bool exists = was_sealed(object);
    for (std::uint64_t n = prng_.chance(30) ? between(2, 5) : 1; n > 0; --n) {
      const ClientId client = some_client();
      const bool is_told = exists && prng_.chance(70);
      const std::size_t node = some_node();
      cluster_.get(node, object, is_told, client);
      if (has_early_gets_ && early_.chance(60)) {
        cluster_.get(node, object, is_told, client, early_.below(size_max_));
      }
    }
  }

  bool was_sealed(const ObjectId& object) {
    return std::any_of(cluster_.requests().begin(), cluster_.requests().end(),
                       [&](const Request& r) {
                         return r.object == object && r.has_value() &&
                                (r.verb == Verb::kPut || r.verb == Verb::kReduce);
                       });
  }

  void release() {
    for (std::size_t i = 0; i < cluster_.requests().size(); ++i) {
      if (prng_.chance(50)) cluster_.release(cluster_.requests()[i]);
    }
  }

  void erase() {
    const ObjectId object = pick_known();
    cluster_.erase(some_node(), object);
  }

  void start_reduce() {
    const auto source_count = static_cast<std::uint32_t>(between(1, kSourcesMax));
    ReduceOptions options;
    options.source_count = source_count;
    options.count = static_cast<std::uint32_t>(between(1, source_count));
    options.op = static_cast<ReduceOp>(prng_.below(kReduceOpCount));
    options.everywhere = prng_.chance(30);
    options.deterministic = prng_.chance(40);
    options.client = some_client();
    // Its first source may be another reduce's result, there already or not.
    auto result = exact_.end();
    if (!exact_.empty() && is_exact(options.op) && prng_.chance(50)) {
      result = std::next(exact_.begin(), static_cast<std::ptrdiff_t>(prng_.below(exact_.size())));
      if (!can_reduce_all(result->second, options.op)) result = exact_.end();
    }
    const std::vector<Part> parts =
        result != exact_.end() ? result->second : some_parts(options.op);
    const std::uint64_t size = size_of(parts);
    const ObjectId target = fresh();
    if (static_cast<unsigned>(target.bytes[8]) % 4 == 0) {  // no draw: kept seeds stay as they were
      const std::uint64_t begin = size / 3 / kPartAlignBytes * kPartAlignBytes;
      options.share = {size, begin, source_count - 1};
      for (const auto& run : runs_of({size, 1, parts, ""}, {begin, size / 2 / 64 * 64 - begin})) {
        options.parts.push_back({run.dtype, run.range.size_bytes});
      }
    }
    Request& reduce = cluster_.reduce(some_node(), target, options);
    auto& sources = sources_[&reduce];
    if (result != exact_.end()) sources.push_back({result->first->object, result->first});
    while (sources.size() < source_count) {
      if (!sources.empty() && prng_.chance(10)) {  // the same one twice
        sources.push_back(sources[prng_.below(sources.size())]);
        continue;
      }
      const ObjectId object = fresh();
      PutOptions put{.size_bytes = size, .parts = parts, .rough = options.deterministic};
      sources.push_back({object, &cluster_.put(some_node(), object, put)});
    }
    for (std::uint32_t i = 0; i < source_count; ++i) {
      if (announces_ && prng_.chance(30)) cluster_.announce(reduce, i, sources[i].object);
    }
    const std::vector<Part>& folded = options.share.is_share() ? options.parts : parts;
    if (is_exact(options.op) && !options.deterministic && !folded.empty()) exact_[&reduce] = folded;
  }

  // Further sums of these are exact in every order.
  static bool is_exact(ReduceOp op) {
    return op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kMin;
  }

  // One to three runs of elements; now and then of a dtype that the operation refuses.
  std::vector<Part> some_parts(ReduceOp op) {
    const bool may_be_refused = prng_.chance(3);
    std::vector<Part> parts;
    const std::uint64_t count = prng_.chance(60) ? 1 : between(2, 3);
    for (std::uint64_t n = count; n > 0; --n) {
      DType dtype = DType::kFloat32;
      do {
        dtype = static_cast<DType>(prng_.below(kDTypeCount));
      } while (!may_be_refused && !can_reduce(dtype, op));
      const std::uint64_t grid = n > 1 ? kPartAlignBytes : element_bytes(dtype);
      parts.push_back({dtype, (some_size() / count / grid + 1) * grid});
    }
    return parts;
  }
  static std::uint64_t size_of(const std::vector<Part>& parts) {
    std::uint64_t size = 0;
    for (const Part& part : parts) size += part.size_bytes;
    return size;
  }

  // Confirms sources that are sealed, in any order; now and then gives one up.
  void feed_reduces(bool all = false) {
    for (auto& [reduce, sources] : sources_) {
      for (std::uint32_t i = 0; i < sources.size(); ++i) {
        const auto is_it = [&](const ReduceSource& s) { return s.index == i; };
        if (std::any_of(reduce->sources.begin(), reduce->sources.end(), is_it)) continue;
        const Request& made = *sources[i].made;
        if (made.has_value() && (all || prng_.chance(50))) {
          cluster_.confirm(*reduce, i, sources[i].object);
        } else if (!made.is_pending() && (all || (!made.has_value() && prng_.chance(50)))) {
          cluster_.fail_source(*reduce, i);
        }
      }
    }
  }

  // ---- versions, each with the delta from the one before it ----

  struct Version {
    Request* whole;
    Request* delta;  // nullptr: the first one
  };

  bool trusts_base() const { return config_.canary == Canary::kTrustBase; }

  void handle_versions() {
    if (versions_.size() < 2 || (versions_.size() < kVersionsMax && more_.chance(30))) {
      return publish();
    }
    const std::size_t last = 1 + more_.below(versions_.size() - 1);
    const std::size_t first = more_.below(last);
    const Version& whole = versions_[last];
    if (!whole.whole->has_value()) return;
    std::vector<const Request*> deltas;
    for (std::size_t i = first + 1; i <= last; ++i) deltas.push_back(versions_[i].delta);
    // Now and then the recipe lacks a delta, or is of another base: only checksums tell.
    if (deltas.size() > 1 && more_.chance(15)) deltas.pop_back();
    const bool is_wrong = more_.chance(trusts_base() ? 60 : 15);
    const Request& base = *versions_[is_wrong ? more_.below(versions_.size()) : first].whole;
    const auto live = live_nodes();
    const std::size_t node = live[more_.below(live.size())];
    if (more_.chance(60)) cluster_.get(node, base.object, base.has_value(), ClientId{1});
    if (more_.chance(50)) cluster_.run_for(100_ms);
    if (!cluster_.is_alive(node)) return;
    for (std::uint64_t client = 1 + more_.below(2); client > 0; --client) {
      cluster_.rebuild(node, *whole.whole, base, deltas, ClientId{client});
    }
  }

  void publish() {
    const auto live = live_nodes();
    const std::size_t node = live[more_.below(live.size())];
    if (versions_.empty()) {
      const std::uint64_t least = config_.engine.inline_bytes_max + 1;
      version_bytes_ = least + more_.below(size_max_ > least ? size_max_ - least : 1);
    }
    const ObjectId name = fresh();
    Request& whole = cluster_.put(node, name, {.size_bytes = version_bytes_});
    Request* delta = nullptr;
    if (!versions_.empty())
      delta = &cluster_.put_delta(node, fresh(), *versions_.back().whole, whole);
    versions_.push_back({&whole, delta});
  }

  // ---- faults ----

  void hurt() {
    const std::size_t a = some_node();
    const std::size_t b = some_node();
    const auto most = static_cast<std::uint64_t>(kFaultMax.ns);
    const Duration while_{static_cast<std::int64_t>(between(1'000'000, most))};
    switch (faults_[prng_.below(faults_.size())]) {
      case Fault::kCrash:
        if (live_nodes().size() > 1) cluster_.crash(a);
        if (live_nodes().size() > 2 && prng_.chance(20)) cluster_.crash(some_node());
        break;
      case Fault::kRestart:
        for (std::size_t node = 0; node < cluster_.size(); ++node) {
          if (!cluster_.is_alive(node) && prng_.chance(50)) return cluster_.restart(node);
        }
        break;
      case Fault::kJoin:
        if (cluster_.size() < 9) cluster_.join();
        break;
      case Fault::kReset:
        if (config_.doubts_deaths && live_nodes().size() > 1) {
          cluster_.separate(a, b, while_);
        } else if (a != b) {
          cluster_.reset_link(a, b);
        }
        break;
      case Fault::kStall:
        if (a != b) cluster_.stall_link(a, b, while_);
        break;
      case Fault::kPause:
        cluster_.pause(a, while_);
        break;
      case Fault::kClient:
        cluster_.kill_client(a, some_client());
        break;
      case Fault::kCancel: {
        auto& requests = cluster_.requests();
        if (!requests.empty()) cluster_.cancel(requests[prng_.below(requests.size())]);
        break;
      }
      case Fault::kOrphan:
        cluster_.orphan(a, pick_known());
        break;
      case Fault::kDrain:  // at most half of the nodes, so that others can take the objects
        if (drains_++ < cluster_.size() / 2) cluster_.drain(a);
        break;
      case Fault::kSlow:
        cluster_.set_rate(a, config_.network.rate_bytes_per_s / between(1, 10));
        break;
    }
    last_fault_ = cluster_.now();
  }

  // ---- liveness ----

  void settle() {
    cluster_.end_jitter();
    if (config_.doubts_deaths) {  // nodes that were cut off hear which of them the view drops
      cluster_.run_for(kFaultMax * 2);
      last_fault_ = cluster_.now();
    }
    for (Request& request : cluster_.requests()) cluster_.release(request);
    if (has_channels_) channel_work_.watch_all();
    const Duration bound = answer_bound();
    const auto are_puts_answered = [this] {
      return std::none_of(cluster_.requests().begin(), cluster_.requests().end(),
                          [this](const Request& r) { return r.verb == Verb::kPut && is_owed(r); });
    };
    cluster_.run_until(are_puts_answered, bound);
    const auto is_settled = [this] {
      feed_reduces(true);  // with results that have come as well
      take_back_announced();
      return std::none_of(cluster_.requests().begin(), cluster_.requests().end(),
                          [this](const Request& r) { return is_owed(r); });
    };
    if (cluster_.run_until(is_settled, bound)) return;
    for (const Request& request : cluster_.requests()) {
      if (is_owed(request)) cluster_.checker().fail("not answered in time: " + name_of(request));
    }
  }

  // Ends the lies. Checks first that no node has more entries than there are names.
  void end_lies() {
    std::set<ObjectId> names;
    for (const Request& request : cluster_.requests()) names.insert(request.object);
    for (std::size_t node = 0; node < cluster_.size(); ++node) {
      if (!cluster_.is_alive(node) || node == config_.liar) continue;
      const EngineStats stats = cluster_.stats(node);
      if (stats.directory_entries > kEntriesOfAName * names.size()) {
        cluster_.checker().fail("node " + std::to_string(node) + " has " +
                                std::to_string(stats.directory_entries) + " directory entries");
      }
    }
    cluster_.end_lies();
    cluster_.run_for(kUnderWayMax);
    last_fault_ = cluster_.now();
    settle();  // with the reduces of which the liar folded a part
  }

  // Where arenas are full, each waiting reservation may take its grace of two seconds. Frames that
  // are late cost each block of the largest request a round trip, at worst, and each message before
  // it one way; a reduce of reduces does so again for each. All that is asked may be copied and
  // folded by one node after the other.
  Duration answer_bound() {
    const auto pending = std::count_if(cluster_.requests().begin(), cluster_.requests().end(),
                                       [](const Request& r) { return r.is_pending(); });
    const auto reduces =
        std::count_if(cluster_.requests().begin(), cluster_.requests().end(),
                      [](const Request& r) { return r.is_pending() && r.verb == Verb::kReduce; });
    const std::uint64_t bytes = (kSourcesMax + 1) * size_max_;
    const auto blocks = static_cast<std::int64_t>(bytes / config_.engine.block_bytes_max + 1);
    const Duration late = config_.late_max() * (2 * blocks + kMessagesOfARequest);
    const TurnConfig& turns = config_.turns;
    const Duration each = turns.time_of(bytes) + turns.per_action * (kActionsOfABlock * blocks);
    const Duration again = draw_.has_rebuilds ? kAnswerBound : 0_s;  // the deltas, then the whole
    return kAnswerBound + again + (draw_.has_small_arena ? 3_s : 0_s) * pending +
           late * (1 + reduces) + each * (pending * static_cast<std::int64_t>(cluster_.size()));
  }

  // Deletes announced sources that will never have a value, because the reduce waits for each until
  // it is deleted.
  void take_back_announced() {
    for (auto& [reduce, sources] : sources_) {
      for (const Source& source : sources) {
        if (!reduce->is_pending() || may_have_value(source)) continue;
        if (taken_back_.insert(source.object).second) {
          cluster_.erase(some_node(), source.object);
        }
      }
    }
  }
  bool may_have_value(const Source& source) {
    const Request& made = *source.made;
    if (made.verb == Verb::kPut) return cluster_.checker().has_live_copy(source.object);
    return made.is_pending() || (made.has_value() && last_fault_ < *made.answered);
  }

  // True if the request is a reduce that waits for a part that the liar folds, or for a source
  // that such a reduce makes.
  bool waits_for_liar(const Request& request) {
    if (request.verb != Verb::kReduce || !request.is_pending()) return false;
    const auto reduce = sources_.find(&request);
    return cluster_.waits_for_liar(request.object) ||
           (reduce != sources_.end() &&
            std::ranges::any_of(reduce->second,
                                [this](const Source& s) { return waits_for_liar(*s.made); }));
  }

  // True when the request must be answered by itself. A get of what no node has may wait, and so
  // may a reduce of what the liar speaks of or folds.
  bool is_owed(const Request& request) {
    if (is_of_channel(request.verb)) return channel_work_.is_owed(request);
    if (!request.is_pending() || !cluster_.is_honest(request.object)) return false;
    if (waits_for_liar(request)) return false;
    if (request.verb == Verb::kKeep && draw_.has_small_arena) return false;  // until there is room
    if (const auto reduce = sources_.find(&request); reduce != sources_.end()) {
      const auto is_honest = [&](const Source& s) { return cluster_.is_honest(s.object); };
      if (!std::all_of(reduce->second.begin(), reduce->second.end(), is_honest)) return false;
    }
    if (request.verb != Verb::kGet || request.exists || request.cancelled) return true;
    if (cluster_.checker().has_live_copy(request.object)) return true;
    return std::any_of(
        cluster_.requests().begin(), cluster_.requests().end(), [&](const Request& r) {
          return r.verb == Verb::kReduce && r.object == request.object && r.has_value() &&
                 last_fault_ < *r.answered && !cluster_.checker().is_deleted(r.object);
        });
  }

  Prng prng_;
  const Draw draw_;
  const ClusterConfig& config_;
  Cluster cluster_;
  ChannelWork channel_work_;
  bool has_channels_ = false;
  bool has_early_gets_ = false;
  std::vector<Fault> faults_;
  std::uint32_t fault_percent_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t spacing_max_ = 0;
  std::uint64_t size_max_ = 0;
  bool deletes_ = false;
  bool puts_again_ = false;
  bool announces_ = false;
  std::map<ObjectId, std::uint32_t> attempts_;  // of objects that are put again: the last one
  Prng more_{mix64(config_.seed ^ 0x76657273696f6e)};  // of versions: other draws stay as they are
  Prng early_{mix64(config_.seed ^ 0x6561726c79)};     // of early gets, likewise
  std::vector<Version> versions_;
  std::uint64_t version_bytes_ = 0;
  std::size_t drains_ = 0;
  std::uint64_t next_object_ = 1;
  std::map<Request*, std::vector<Source>, ById> sources_;
  std::set<ObjectId> taken_back_;
  std::map<Request*, std::vector<Part>, ById> exact_;  // reduces whose results may be sources
  Instant last_fault_{};
};

}  // namespace

RunResult random_run(const RunOptions& options) { return Run(options).run(); }

}  // namespace hoplite::sim
