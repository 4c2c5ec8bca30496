// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "client/attachment.h"
#include "client/fork_guard.h"
#include "client/range_writer.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

// 50 ms between calls of should_stop: Ctrl-C ends a write within twice that.
constexpr std::chrono::milliseconds kStopCheckEvery{50};

using SteadyClock = std::chrono::steady_clock;

}  // namespace

Client::Client(std::shared_ptr<Attachment> attachment) : attachment_(std::move(attachment)) {}

Client::~Client() { close(); }

Result<std::unique_ptr<Client>> Client::attach(const std::string& socket_path,
                                               std::uint64_t unread_bytes_max) {
  auto attachment = Attachment::open(socket_path, unread_bytes_max);
  if (!attachment) return attachment.error();
  return std::unique_ptr<Client>(new Client(std::move(*attachment)));
}

Result<RequestHandle> Client::put(ObjectId object, Incarnation incarnation, std::string layout,
                                  std::vector<Part> parts, Buffers data) {
  const std::uint64_t size_bytes = total_bytes(data);
  Bytes payload;
  if (size_bytes <= kInlineBytesMax) {
    payload.reserve(size_bytes);
    for (const auto& each : data) payload.insert(payload.end(), each.begin(), each.end());
  }
  return begin_put(object, incarnation, std::move(layout), std::move(parts), size_bytes,
                   std::move(payload));
}

Result<RequestHandle> Client::reserve(ObjectId object, Incarnation incarnation, std::string layout,
                                      std::vector<Part> parts, std::uint64_t size_bytes) {
  if (size_bytes <= kInlineBytesMax) {
    return Error{Code::kInvalidArgument, "only an object of more than " +
                                             std::to_string(kInlineBytesMax) +
                                             " bytes is written in place; put() this one"};
  }
  return begin_put(object, incarnation, std::move(layout), std::move(parts), size_bytes, {});
}

Result<RequestHandle> Client::begin_put(ObjectId object, Incarnation incarnation,
                                        std::string layout, std::vector<Part> parts,
                                        std::uint64_t size_bytes, Bytes payload) {
  PutCommand put;
  put.object = object;
  put.incarnation = incarnation;
  put.meta.size_bytes = size_bytes;
  put.meta.parts = std::move(parts);
  put.meta.layout = std::move(layout);
  put.payload = std::move(payload);
  if (const char* fault = fault_of(put.meta)) {
    return Error{Code::kInvalidArgument, "put of object " + short_name(object) + ": " + fault};
  }
  return attachment_->begin_request(object, std::move(put), incarnation, size_bytes);
}

Result<RequestHandle> Client::write(Request& put, Buffers data, const StopPredicate& should_stop) {
  const std::uint64_t size_bytes = total_bytes(data);
  auto range = attachment_->take_range(put, size_bytes);
  if (!range) return range.error();
  auto whole = write_parts(put, data, *range, should_stop);
  if (!whole) {
    attachment_->release_range(put);
    return whole.error();
  }
  return attachment_->begin_request(put.object(), std::move(*whole));
}

// Returns the command that seals the object.
Result<WroteCommand> Client::write_parts(Request& put, Buffers data, const Reserved& range,
                                         const StopPredicate& should_stop) {
  const Error cancelled{Code::kCancelled,
                        "the put of object " + short_name(put.object()) + " was cancelled"};
  RangeWriter writer(attachment_->writable_fd(), range.extent, range.block_bytes, data);
  const auto command_of = [&](const RangeWriter::Written& part) {
    return WroteCommand{put.object(), put.incarnation(), part.upto_bytes,
                        false,        part.first_block,  part.sums};
  };
  const auto progress = [&](const RangeWriter::Written& part) -> Result<void> {
    if (!attachment_->is_wanted(put)) return cancelled;
    return attachment_->send_command(RequestId{0}, command_of(part));
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < writer.thread_count(); ++i) {
    try {
      others.emplace_back([&] { writer.work(progress); });
    } catch (const std::system_error&) {
      break;  // the process may start no more threads: the existing ones do the same work
    }
  }
  auto checked = SteadyClock::now();
  writer.work([&](const RangeWriter::Written& part) -> Result<void> {
    const auto now = SteadyClock::now();
    if (should_stop && now - checked >= kStopCheckEvery) {
      checked = now;
      if (should_stop()) return cancelled;
    }
    return progress(part);
  });
  others.clear();  // joins them
  auto last = writer.result();
  if (!last) return last.error();
  if (!attachment_->is_wanted(put)) return cancelled;
  return command_of(*last);
}

Result<std::unique_ptr<Unsealed>> Client::map(RequestHandle put) {
  auto range = attachment_->take_range(*put, put->size_bytes());
  if (!range) return range.error();
  const Extent extent = range->extent;
  auto mapping = map_shared(attachment_->writable_fd(), extent.offset, extent.size_bytes);
  if (!mapping) {
    attachment_->release_range(*put);
    return mapping.error();
  }
  return std::make_unique<Unsealed>(attachment_, std::move(put), extent, std::move(*mapping));
}

Result<RequestHandle> Client::get(ObjectId object, bool exists, std::uint64_t upto_bytes) {
  return attachment_->begin_request(object, GetCommand{object, exists, upto_bytes});
}

Result<RequestHandle> Client::rebuild(RebuildCommand recipe) {
  const ObjectId object = recipe.object;
  const char* fault = fault_of(recipe.meta);
  if (recipe.deltas.size() > kRebuildDeltasMax) fault = "its recipe has too many deltas";
  if (fault != nullptr) {
    return Error{Code::kInvalidArgument, "rebuild of object " + short_name(object) + ": " + fault};
  }
  return attachment_->begin_request(object, std::move(recipe));
}

Result<RequestHandle> Client::excerpt(Excerpt wanted, bool exists) {
  const ObjectId object = wanted.runs.empty() ? wanted.source.object : wanted.object;
  const char* fault = fault_of(wanted.meta);
  if (wanted.runs.size() > kExcerptRunsMax) fault = "it has too many runs";
  if (fault != nullptr) {
    return Error{Code::kInvalidArgument,
                 "part of object " + short_name(wanted.source.object) + ": " + fault};
  }
  return attachment_->begin_request(object, ExcerptCommand{std::move(wanted), exists});
}

Result<std::vector<RequestHandle>> Client::gather(std::span<const ObjectId> objects, bool exist) {
  return attachment_->begin_gets(objects, exist);
}

std::optional<std::size_t> Client::wait_all(std::span<const RequestHandle> requests,
                                            Duration timeout) {
  return attachment_->wait_all(requests, timeout);
}

Result<RequestHandle> Client::remove(ObjectId object, Incarnation upto) {
  return attachment_->begin_request(object, DeleteCommand{object, upto});
}

Result<RequestHandle> Client::orphan(ObjectId object, Incarnation upto) {
  return attachment_->begin_request(object, OrphanCommand{object, upto});
}

Result<RequestHandle> Client::keep(ObjectId object, Incarnation incarnation, std::uint8_t copies) {
  return attachment_->begin_request(object, KeepCommand{object, incarnation, copies});
}

Result<RequestHandle> Client::echo() { return attachment_->begin_request({}, EchoCommand{}); }

Result<RequestHandle> Client::take_term(ObjectId channel) {
  return attachment_->begin_request(channel, TakeTermCommand{channel});
}

Result<RequestHandle> Client::publish(ObjectId channel, Version version) {
  if (version.payload.size() > kVersionBytesMax) {
    return Error{Code::kInvalidArgument,
                 "publish to channel " + short_name(channel) + ": its payload has " +
                     std::to_string(version.payload.size()) + " bytes, of at most " +
                     std::to_string(kVersionBytesMax) +
                     "; put the value, and publish the id of the object"};
  }
  return attachment_->begin_request(channel, PublishCommand{channel, std::move(version)});
}

Result<RequestHandle> Client::watch_channel(ObjectId channel, VersionNumber newer_than, bool wait) {
  return attachment_->begin_request(channel, WatchCommand{channel, newer_than, wait});
}

Result<RequestHandle> Client::list_channels(ObjectId after) {
  return attachment_->begin_request({}, ListChannelsCommand{after});
}

Result<void> Client::note_read(const ReadCommand& read) {
  return attachment_->send_command(RequestId{0}, read);
}

Result<RequestHandle> Client::reduce(const ReduceCommand& wanted) {
  if (wanted.count == 0 || wanted.count > wanted.source_count ||
      wanted.source_count > kReduceSourcesMax) {
    return Error{Code::kInvalidArgument, "reduce of " + std::to_string(wanted.count) + " out of " +
                                             std::to_string(wanted.source_count) +
                                             " sources: 1 <= count <= source_count <= " +
                                             std::to_string(kReduceSourcesMax)};
  }
  return attachment_->begin_request(wanted.target, wanted);
}

Result<void> Client::reduce_source(ObjectId target, std::uint32_t index, ObjectId object,
                                   Incarnation incarnation, bool confirmed) {
  if (index >= kReduceSourcesMax) {
    return Error{Code::kInvalidArgument, "source " + std::to_string(index) +
                                             " of a reduce: at most " +
                                             std::to_string(kReduceSourcesMax)};
  }
  ReduceSource source;
  source.index = index;
  source.object = object;
  source.incarnation = incarnation;
  return attachment_->send_command(RequestId{0}, ReduceSourceCommand{target, source, confirmed});
}

Result<void> Client::reduce_source_failed(ObjectId target, std::uint32_t index) {
  if (index >= kReduceSourcesMax) {
    return Error{Code::kInvalidArgument, "source " + std::to_string(index) +
                                             " of a reduce: at most " +
                                             std::to_string(kReduceSourcesMax)};
  }
  ReduceSource source;
  source.index = index;
  source.failed = true;
  return attachment_->send_command(RequestId{0}, ReduceSourceCommand{target, source, true});
}

Result<void> Client::watch(Request& request) { return attachment_->watch(request); }

Result<std::optional<RequestId>> Client::next_finished(Duration timeout) {
  return attachment_->next_finished(timeout);
}

void Client::close() { attachment_->close(); }
NodeId Client::node_id() const { return attachment_->attached().node; }
Incarnation Client::node_incarnation() const { return attachment_->attached().incarnation; }
bool Client::is_alive() const { return attachment_->is_alive(); }

}  // namespace hoplite
