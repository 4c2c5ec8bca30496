// SPDX-License-Identifier: Apache-2.0
// The simulated clients: what they ask crosses wire/local_frame, as on the Unix socket.
#include "plan/broadcast/broadcast.h"
#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/model/describe.h"
#include "wire/crc32c.h"

namespace hoplite::sim {

Request& Cluster::ask(Verb verb, std::size_t node, ClientId client, const ObjectId& object) {
  Request& request = requests_.emplace_back();
  request.verb = verb;
  request.node = node;
  request.node_life = nodes_[node]->life;
  request.client = client;
  request.id = RequestId{next_request_++};
  request.object = object;
  request.asked = now();
  request.abandoned = !nodes_[node]->alive;
  waiting_[request.id] = &request;
  if (config_.liar == node) asked_of_liar_.insert(object);
  return request;
}

void Cluster::command(const Request& request, CommandBody body) {
  command(request.node, request.node_life, {request.client, request.id, std::move(body)});
}

void Cluster::command(std::size_t index, Incarnation life, Command said) {
  const Stream stream{Stream::Kind::kCommand, said.client.value, nodes_[index]->id.value};
  timeline_.after(
      config_.local_delay,
      [this, index, life, said = std::move(said)] {
        run_in_turn(index, life,
                    [this, said](Node& node) {
                      if (config_.trace) trace(node, describe(said));
                      if (std::holds_alternative<ClientLostCommand>(said.body)) {
                        node.engine->handle_command(said, clock_of(node));
                        return;
                      }
                      ByteVector frame;
                      encode(said, frame);
                      auto header = decode_local_header(frame);
                      auto decoded =
                          decode_local_body(*header, std::span(frame).subspan(kLocalHeaderBytes));
                      if (!decoded || !std::holds_alternative<Command>(*decoded)) {
                        checker_.fail("a command does not decode");
                        return;
                      }
                      node.hops_in = 0;
                      auto& heard = std::get<Command>(*decoded);
                      heard.client = said.client;
                      if (auto* put = std::get_if<PutCommand>(&heard.body)) {
                        put->payload = std::get<PutCommand>(said.body).payload;
                      }
                      node.engine->handle_command(heard, clock_of(node));
                    },
                    {});
      },
      stream);
}

// ---- verbs ----

Request& Cluster::put(std::size_t node, const ObjectId& object, const PutOptions& options) {
  Request& put = ask(Verb::kPut, node, options.client, object);
  put.incarnation = options.incarnation;
  put.parts = options.parts;
  if (put.parts.empty() && options.size_bytes > 0)
    put.parts = {{options.dtype, options.size_bytes}};
  const std::vector<Part> parts = put.parts;
  for (Part& part : put.parts) part.size_bytes /= config_.network.stands_for;
  put.maps = options.maps && options.size_bytes > config_.engine.inline_bytes_max;
  put.bytes = options.bytes.empty()
                  ? content_of(object, options.incarnation, put.parts, options.rough)
                  : options.bytes;
  checker_.note_put(put);
  PutCommand body{object, options.incarnation, {}, {}};
  body.meta.size_bytes = options.size_bytes;
  body.meta.parts = parts;
  body.meta.layout = layout_of(parts);
  const std::uint64_t sent_max = config_.clients_send_up_to_64_kib && !put.maps
                                     ? kInlineBytesMax
                                     : config_.engine.inline_bytes_max;
  if (options.size_bytes <= sent_max) body.payload = put.bytes;
  command(put, std::move(body));
  return put;
}

Request& Cluster::get(std::size_t node, const ObjectId& object, bool exists, ClientId client,
                      std::uint64_t upto_bytes) {
  Request& get = ask(Verb::kGet, node, client, object);
  get.exists = exists;
  get.upto_bytes = upto_bytes;
  command(get, GetCommand{object, exists, upto_bytes});
  return get;
}

Request& Cluster::put_delta(std::size_t node, const ObjectId& object, const Request& base,
                            const Request& whole) {
  const Bytes bytes = delta_between(base.bytes, whole.bytes);
  return put(node, object, {.size_bytes = bytes.size(), .bytes = bytes});
}

Request& Cluster::rebuild(std::size_t node, const Request& whole, const Request& base,
                          std::span<const Request* const> deltas, ClientId client) {
  Request& get = ask(Verb::kGet, node, client, whole.object);
  get.exists = true;
  const std::uint64_t size_bytes = whole.bytes.size();
  RebuildCommand body{.object = whole.object,
                      .incarnation = whole.incarnation,
                      .meta = {size_bytes, choose_block_bytes(size_bytes, config_.engine),
                               whole.parts, layout_of(whole.parts)},
                      .crc32c = crc32c(whole.bytes),
                      .base = {base.object, base.incarnation},
                      .deltas = {}};
  for (const Request* delta : deltas) body.deltas.push_back({delta->object, delta->incarnation});
  command(get, std::move(body));
  return get;
}

Request& Cluster::excerpt(std::size_t node, const Request& put, const Excerpt& excerpt,
                          ClientId client) {
  Request part;
  part.object = excerpt.object;
  part.incarnation = excerpt.source.incarnation;
  part.parts = excerpt.meta.parts;
  part.bytes.resize(excerpt.meta.size_bytes);
  gather_runs(excerpt.runs, put.bytes, 0, part.bytes.size(), part.bytes);
  checker_.note_put(part);
  Request& get = ask(Verb::kGet, node, client, excerpt.object);
  get.exists = true;
  command(get, ExcerptCommand{excerpt, true});
  return get;
}

Request& Cluster::erase(std::size_t node, const ObjectId& object, Incarnation upto) {
  Request& erase = ask(Verb::kDelete, node, ClientId{1}, object);
  erase.incarnation = upto;
  checker_.note_delete_request(object, now());
  command(erase, DeleteCommand{object, upto});
  return erase;
}

Request& Cluster::reduce(std::size_t node, const ObjectId& target, const ReduceOptions& options) {
  Request& reduce = ask(Verb::kReduce, node, options.client, target);
  reduce.op = options.op;
  reduce.source_count = options.source_count;
  reduce.count = options.count;
  reduce.deterministic = options.deterministic;
  reduce.share = options.share;
  reduce.parts = options.parts;
  checker_.note_reduce(reduce);
  reduces_[target] = &reduce;
  ReduceCommand body{target,
                     options.op,
                     options.source_count,
                     options.count,
                     options.everywhere,
                     options.deterministic,
                     options.share,
                     {}};
  for (const Part& part : options.parts) body.meta.size_bytes += part.size_bytes;
  body.meta.parts = options.parts;
  body.meta.layout = layout_of(options.parts);
  command(reduce, std::move(body));
  return reduce;
}

void Cluster::confirm(Request& reduce, std::uint32_t index, const ObjectId& source) {
  if (reduce.abandoned) return;
  reduce.sources.push_back({.index = index, .object = source, .incarnation = {}});
  command(reduce, ReduceSourceCommand{reduce.object, reduce.sources.back()});
}

void Cluster::announce(Request& reduce, std::uint32_t index, const ObjectId& source) {
  if (reduce.abandoned) return;
  reduce.sources.push_back({.index = index, .object = source, .incarnation = {}});
  command(reduce, ReduceSourceCommand{reduce.object, reduce.sources.back(), false});
}

void Cluster::fail_source(Request& reduce, std::uint32_t index) {
  if (reduce.abandoned) return;
  reduce.sources.push_back({.index = index, .object = {}, .incarnation = {}, .failed = true});
  command(reduce, ReduceSourceCommand{reduce.object, reduce.sources.back()});
}

void Cluster::release(Request& get) {
  if (!get.pinned) return;
  Node& node = *nodes_[get.node];
  checker_.check_release(get, bytes_at(node, get.fetched.extent).first(get.bytes.size()));
  get.pinned = false;
  if (config_.canary == Canary::kForgetRelease && ++canary_deeds_ == 1) return;
  command(get, ReleaseCommand{get.object, get.fetched.incarnation});
}

void Cluster::cancel(Request& request) {
  if (!request.is_pending()) return;
  if (request.maps && request.sealing.value != 0) return;  // no client takes a seal back
  request.cancelled = true;
  if (request.extent.size_bytes > 0) request.abandoned = true;  // Reserved was its answer
  const RequestId open = request.sealing.value != 0 ? request.sealing : request.id;
  command(request.node, request.node_life, {request.client, open, CancelCommand{request.object}});
}

void Cluster::kill_client(std::size_t index, ClientId client) {
  Node& node = *nodes_[index];
  if (!node.alive) return;
  trace(node, "client " + std::to_string(client.value) + " dies");
  for (Request& request : requests_) {
    const bool is_its =
        request.node == index && request.client == client && request.node_life == node.life;
    if (!is_its) continue;
    if (!request.answered) request.abandoned = true;
    request.pinned = false;
  }
  command(index, node.life, {client, {}, ClientLostCommand{}});
}

Request& Cluster::orphan(std::size_t node, const ObjectId& object, Incarnation upto) {
  Request& orphan = ask(Verb::kOrphan, node, ClientId{1}, object);
  orphan.incarnation = upto;
  checker_.note_orphan(object);
  command(orphan, OrphanCommand{object, upto});
  return orphan;
}

Request& Cluster::keep(const Request& put, std::uint8_t copies) {
  Request& keep = ask(Verb::kKeep, put.node, put.client, put.object);
  keep.abandoned = put.abandoned;
  keep.incarnation = put.incarnation;
  keep.copies = copies;
  checker_.note_keep(keep, count_members());
  command(put.node, put.node_life,
          {keep.client, keep.id, KeepCommand{put.object, put.incarnation, copies}});
  return keep;
}

void Cluster::drain(std::size_t index) {
  run_in_turn(index, nodes_[index]->life,
              [this](Node& node) {
                trace(node, "drains");
                node.is_steady = false;
                checker_.note_drain(node.index, node.life);
                node.engine->handle_command({ClientId{0}, RequestId{0}, DrainCommand{}},
                                            clock_of(node));
              },
              {});
}

std::vector<ObjectRow> Cluster::objects(std::size_t index, std::uint64_t limit) {
  run_in_turn(index, nodes_[index]->life,
              [this, limit](Node& node) {
                node.engine->handle_command({ClientId{0}, RequestId{0}, ListCommand{limit, 0}},
                                            clock_of(node));
              },
              {});
  return std::exchange(listed_, {}).objects;
}

Request& Cluster::ask_channel(Verb verb, std::size_t node, const ObjectId& channel,
                              const ChannelOptions& options) {
  Request& request = ask(verb, node, options.client, channel);
  request.version = options.version;
  request.newer_than = options.newer_than;
  request.waits = verb == Verb::kWatch && options.wait;
  channel_checker_.note_request(request, count_members());
  if (verb == Verb::kTakeTerm) command(request, TakeTermCommand{channel});
  if (verb == Verb::kPublish) command(request, PublishCommand{channel, options.version});
  if (verb == Verb::kWatch) {
    command(request, WatchCommand{channel, options.newer_than, options.wait});
  }
  return request;
}

// ---- answers ----

void Cluster::reply(Node& node, const ReplyToClient& said) {
  ByteVector frame;
  Bytes payload;
  const auto* fetched = std::get_if<Fetched>(&said.reply);
  if (fetched != nullptr && !fetched->mapped) {
    const auto bytes = bytes_at(node, fetched->extent);
    payload.assign(bytes.begin(), bytes.end());
  }
  if (payload.size() > kInlineBytesMax) {
    checker_.fail("a large object is answered without a mapping");
    return;
  }
  encode(LocalReply{said.request, said.reply}, payload.size(), frame);
  auto header = decode_local_header(frame);
  auto decoded = decode_local_body(*header, std::span(frame).subspan(kLocalHeaderBytes));
  if (!decoded || !std::holds_alternative<LocalReply>(*decoded)) {
    checker_.fail("a reply does not decode");
    return;
  }
  const auto found = waiting_.find(said.request);
  if (found == waiting_.end() || found->second->client != said.client) {
    checker_.fail("an answer to nobody's request");
    return;
  }
  if (config_.canary == Canary::kForgetReply && fetched != nullptr && ++canary_deeds_ == 1) return;
  // Bytes that travel are read now; bytes that are mapped are looked at when the client sees them.
  timeline_.after(config_.local_delay,
                  [this, request = found->second, payload = std::move(payload),
                   heard = std::get<LocalReply>(*decoded).reply]() mutable {
                    if (request->abandoned) {  // it was taken back while its answer was under way
                      const auto* late = std::get_if<Fetched>(&heard);
                      if (late != nullptr && late->mapped && request->cancelled) {
                        command(*request, ReleaseCommand{request->object, late->incarnation});
                      }
                      return;
                    }
                    if (const auto* got = std::get_if<Fetched>(&heard)) {
                      request->bytes = std::move(payload);
                      if (got->mapped) {
                        const auto mapped = bytes_at(*nodes_[request->node], got->extent);
                        const auto ready = mapped.first(
                            std::min(mapped.size(), got->ready_bytes / config_.network.stands_for));
                        request->bytes.assign(ready.begin(), ready.end());
                      }
                    }
                    handle_answer(*request, heard);
                  },
                  {Stream::Kind::kAtOnce});
}

void Cluster::handle_answer(Request& request, const Reply& reply) {
  if (request.answered) {
    // Each progress report of a put that has failed already is answered by its error once more.
    const bool again =
        request.verb == Verb::kPut && request.error && std::holds_alternative<Error>(reply);
    if (!again) checker_.fail("answered twice: " + name_of(request));
    return;
  }
  if (const auto* reserved = std::get_if<Reserved>(&reply)) {
    request.extent = reserved->extent;
    request.block_bytes = reserved->block_bytes;
    if (reserved->extent.size_bytes < request.bytes.size()) {
      checker_.fail("a reservation is too small: " + name_of(request));
    }
    if (request.cancelled) request.abandoned = true;
    continue_write(request);
    return;
  }
  request.answered = now();
  if (is_of_channel(request.verb)) {
    if (const auto* taken = std::get_if<TermTaken>(&reply)) request.taken = *taken;
    if (const auto* seen = std::get_if<VersionSeen>(&reply)) request.version = seen->version;
    const auto* refused = std::get_if<VersionRefused>(&reply);
    request.is_taken = refused != nullptr && refused->is_taken;
    request.error = error_of(reply);
    const auto fault = channel_checker_.check_answer(request);
    if (fault) checker_.fail(name_of(request) + ": " + *fault);
  } else if (auto error = error_of(reply)) {
    request.error = std::move(error);
    if (const auto* failed = std::get_if<ReduceFailed>(&reply)) request.lost = failed->lost;
    if (request.maps)
      command(request, CancelCommand{request.object});  // it has unmapped what it wrote
    checker_.check_error(request, now());
  } else if (const auto* fetched = std::get_if<Fetched>(&reply)) {
    request.fetched = *fetched;
    for (Part& part : request.fetched.meta.parts) part.size_bytes /= config_.network.stands_for;
    request.hops = nodes_[request.node]->hops.of(fetched->extent);
    request.pinned = fetched->mapped;
    if (config_.canary == Canary::kScribble && fetched->mapped && ++canary_deeds_ == 1) {
      bytes_at(*nodes_[request.node], fetched->extent)[0] ^= std::byte{1};
    }
    checker_.check_get(request, now());
    if (request.verb == Verb::kPut) checker_.note_seal(request, now());
  } else if (const auto* reduced = std::get_if<Reduced>(&reply)) {
    request.members = reduced->members;
    checker_.check_result(request);
  } else if (request.verb == Verb::kPut) {
    checker_.note_seal(request, now());
  } else if (request.verb == Verb::kKeep) {
    checker_.note_kept(request, count_members());
  } else if (request.verb == Verb::kDelete && std::holds_alternative<Done>(reply)) {
    checker_.note_delete(request);
  }
}

// A client fills the range of its large put step by step, and says how far it is. Only the last
// report asks for an answer, under an id of its own.
void Cluster::continue_write(Request& put) {
  if (put.abandoned || put.cancelled || put.answered) return;
  Node& node = *nodes_[put.node];
  const std::uint64_t step =
      std::uint64_t{config_.blocks_per_write} * config_.engine.block_bytes_max;
  const std::uint64_t each = config_.network.stands_for;
  const std::uint64_t size = put.bytes.size() * each;
  const Extent range{put.extent.offset + put.written, std::min(size - put.written, step)};
  const auto into = bytes_at(node, range);
  const bool forgets = config_.canary == Canary::kLoseWrite && ++canary_deeds_ == 1;
  if (!forgets) {
    std::copy_n(put.bytes.begin() + static_cast<std::ptrdiff_t>(put.written / each), into.size(),
                into.begin());
    node.hops.set(range, 0);
  }
  const Duration taken{
      static_cast<std::int64_t>(range.size_bytes * 1'000'000'000 / config_.write_bytes_per_s)};
  put.written += range.size_bytes;
  const std::uint64_t before = put.written - range.size_bytes;
  timeline_.after(taken,
                  [this, &put, size, before, upto = put.written, sums = sums_of(put, before)] {
                    if (put.abandoned || put.cancelled) return;
                    const bool is_last = upto == size;
                    if (is_last) {
                      put.sealing = RequestId{next_request_++};
                      waiting_[put.sealing] = &put;
                    }
                    const std::uint64_t first = sums.empty() ? 0 : before / put.block_bytes;
                    const WroteCommand wrote{put.object,
                                             put.incarnation,
                                             upto,
                                             is_last && put.maps,
                                             BlockIndex{static_cast<std::uint32_t>(first)},
                                             sums};
                    command(put.node, put.node_life,
                            {put.client, is_last ? put.sealing : RequestId{}, wrote});
                    if (!is_last) continue_write(put);
                  },
                  {Stream::Kind::kAtOnce});
}

// Returns the checksums of the blocks that the client's last step, from `from_bytes` on, has made
// whole. Half of all puts come without, as those do that are filled in place.
std::vector<std::uint32_t> Cluster::sums_of(const Request& put, std::uint64_t from_bytes) {
  std::vector<std::uint32_t> sums;
  if (put.object.bytes[8] % 2 == 0 || put.maps || put.block_bytes == 0) return sums;
  const std::uint64_t size = put.bytes.size() * config_.network.stands_for;
  const std::uint64_t first = from_bytes / put.block_bytes;
  for (std::uint64_t at = first * put.block_bytes; at < put.written; at += put.block_bytes) {
    const std::uint64_t end = std::min<std::uint64_t>(at + put.block_bytes, size);
    if (end > put.written) break;
    sums.push_back(crc32c(bytes_at(*nodes_[put.node], {put.extent.offset + at, end - at})));
  }
  return sums;
}

}  // namespace hoplite::sim
