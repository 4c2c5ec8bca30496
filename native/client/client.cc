// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "client/attachment.h"
#include "client/fork_guard.h"
#include "io/system_error.h"

namespace hoplite {
namespace {

// Parts of a large put. pwrite(2) of 1 MiB reaches 0.43 of a warm memcpy and larger ones no more;
// receivers stream behind the writer, so a smaller object is announced in at least 16 parts.
constexpr std::uint64_t kWriteBytesMax = 1_MiB;
constexpr std::uint64_t kWriteBytesMin = 256_KiB;
constexpr std::uint64_t kWriteParts = 16;
constexpr std::size_t kBuffersPerWrite = 64;  // of a state_dict's many small leaves, per pwritev(2)
// Ctrl-C is answered within twice that.
constexpr std::chrono::milliseconds kStopAskedEvery{50};

using SteadyClock = std::chrono::steady_clock;

// The bytes of several buffers as one sequence, taken from the front.
class Sequence {
 public:
  explicit Sequence(Buffers buffers) : buffers_(buffers) { skip(0); }

  // Writes the next `size_bytes` of them at `offset`.  REQUIRES: so many are left.
  Result<void> write(int fd, std::uint64_t size_bytes, std::uint64_t offset) {
    while (size_bytes > 0) {
      std::array<iovec, kBuffersPerWrite> parts{};
      std::size_t count = 0;
      std::uint64_t gathered = 0;
      for (std::size_t i = next_; count < parts.size() && gathered < size_bytes; ++i) {
        const auto here = buffers_[i].subspan(i == next_ ? at_ : 0);
        const auto take = std::min<std::uint64_t>(here.size(), size_bytes - gathered);
        parts[count++] = {const_cast<std::byte*>(here.data()), take};
        gathered += take;
      }
      const ssize_t written =
          ::pwritev(fd, parts.data(), static_cast<int>(count), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return system_error("writing into the arena");
      skip(static_cast<std::size_t>(written));
      size_bytes -= static_cast<std::uint64_t>(written);
      offset += static_cast<std::uint64_t>(written);
    }
    return {};
  }

 private:
  void skip(std::size_t bytes) {
    at_ += bytes;
    while (next_ < buffers_.size() && at_ >= buffers_[next_].size()) {
      at_ -= buffers_[next_++].size();
    }
  }
  Buffers buffers_;
  std::size_t next_ = 0;  // the first one that is not used up, from `at_` on
  std::size_t at_ = 0;
};

std::uint64_t total_bytes(Buffers data) {
  std::uint64_t total = 0;
  for (const auto& each : data) total += each.size();
  return total;
}

}  // namespace

Client::Client(std::shared_ptr<Attachment> attachment) : attachment_(std::move(attachment)) {}

Client::~Client() { close(); }

Result<std::unique_ptr<Client>> Client::attach(const std::string& socket_path) {
  auto attachment = Attachment::open(socket_path);
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
  return ask_put(object, incarnation, std::move(layout), std::move(parts), size_bytes,
                 std::move(payload));
}

Result<RequestHandle> Client::reserve(ObjectId object, Incarnation incarnation, std::string layout,
                                      std::vector<Part> parts, std::uint64_t size_bytes) {
  if (size_bytes <= kInlineBytesMax) {
    return Error{Code::kInvalidArgument, "only an object of more than " +
                                             std::to_string(kInlineBytesMax) +
                                             " bytes is written in place; put() this one"};
  }
  return ask_put(object, incarnation, std::move(layout), std::move(parts), size_bytes, {});
}

Result<RequestHandle> Client::ask_put(ObjectId object, Incarnation incarnation, std::string layout,
                                      std::vector<Part> parts, std::uint64_t size_bytes,
                                      Bytes payload) {
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
  return attachment_->ask(object, std::move(put), incarnation, size_bytes);
}

Result<RequestHandle> Client::write(Request& put, Buffers data, const StopAsked& stop_asked) {
  const std::uint64_t size_bytes = total_bytes(data);
  auto extent = attachment_->take_range(put, size_bytes);
  if (!extent) return extent.error();
  auto written = write_parts(put, data, *extent, stop_asked);
  if (!written) {
    attachment_->give_back(put);
    return written.error();
  }
  return attachment_->ask(put.object(),
                          WroteCommand{put.object(), put.incarnation(), size_bytes, false});
}

Result<void> Client::write_parts(Request& put, Buffers data, Extent extent,
                                 const StopAsked& stop_asked) {
  const std::uint64_t part_bytes =
      std::clamp(extent.size_bytes / kWriteParts, kWriteBytesMin, kWriteBytesMax);
  const Error cancelled{Code::kCancelled,
                        "the put of object " + short_name(put.object()) + " was cancelled"};
  Sequence bytes(data);
  auto asked = SteadyClock::now();
  for (std::uint64_t done = 0;;) {
    const std::uint64_t size = std::min(part_bytes, extent.size_bytes - done);
    auto written = bytes.write(attachment_->writable_fd(), size, extent.offset + done);
    if (!written) return written.error();
    done += size;
    if (!attachment_->is_welcome(put)) return cancelled;
    if (done == extent.size_bytes) return {};  // the last part is asked, for it is answered
    auto told =
        attachment_->tell(RequestId{0}, WroteCommand{put.object(), put.incarnation(), done, false});
    if (!told) return told.error();
    const auto now = SteadyClock::now();
    if (!stop_asked || now - asked < kStopAskedEvery) continue;
    asked = now;
    if (stop_asked()) return cancelled;
  }
}

Result<std::unique_ptr<Unsealed>> Client::map(RequestHandle put) {
  auto extent = attachment_->take_range(*put, put->size_bytes());
  if (!extent) return extent.error();
  auto mapping = map_shared(attachment_->writable_fd(), extent->offset, extent->size_bytes);
  if (!mapping) {
    attachment_->give_back(*put);
    return mapping.error();
  }
  return std::make_unique<Unsealed>(attachment_, std::move(put), *extent, std::move(*mapping));
}

Result<RequestHandle> Client::get(ObjectId object, bool exists) {
  return attachment_->ask(object, GetCommand{object, exists});
}

Result<RequestHandle> Client::remove(ObjectId object, Incarnation upto) {
  return attachment_->ask(object, DeleteCommand{object, upto});
}

Result<RequestHandle> Client::reduce(ObjectId target, ReduceOp op, std::uint32_t source_count,
                                     std::uint32_t count, bool everywhere) {
  if (count == 0 || count > source_count || source_count > kReduceSourcesMax) {
    return Error{
        Code::kInvalidArgument,
        "reduce of " + std::to_string(count) + " out of " + std::to_string(source_count) +
            " sources: 1 <= count <= source_count <= " + std::to_string(kReduceSourcesMax)};
  }
  return attachment_->ask(target, ReduceCommand{target, op, source_count, count, everywhere});
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
  return attachment_->tell(RequestId{0}, ReduceSourceCommand{target, source, confirmed});
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
  return attachment_->tell(RequestId{0}, ReduceSourceCommand{target, source, true});
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
