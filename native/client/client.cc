// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/attachment.h"
#include "io/system_error.h"

namespace hoplite {
namespace {

// Parts of a large put. pwrite(2) of 1 MiB reaches 0.43 of a warm memcpy and larger ones no more;
// receivers stream behind the writer, so a smaller object is announced in at least 16 parts.
constexpr std::uint64_t kWriteBytesMax = 1_MiB;
constexpr std::uint64_t kWriteBytesMin = 256_KiB;
constexpr std::uint64_t kWriteParts = 16;

Result<void> write_at(int fd, std::span<const std::byte> data, std::uint64_t offset) {
  while (!data.empty()) {
    const ssize_t written = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error("writing into the arena");
    data = data.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
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
                                  std::vector<Part> parts, std::span<const std::byte> data) {
  PutCommand put;
  put.object = object;
  put.incarnation = incarnation;
  put.meta.size_bytes = data.size();
  put.meta.parts = std::move(parts);
  put.meta.layout = std::move(layout);
  if (const char* fault = fault_of(put.meta)) {
    return Error{Code::kInvalidArgument, "put of object " + short_name(object) + ": " + fault};
  }
  if (data.size() <= kInlineBytesMax) put.payload.assign(data.begin(), data.end());
  return attachment_->ask(object, std::move(put), incarnation, data.size());
}

Result<RequestHandle> Client::write(Request& put, std::span<const std::byte> data) {
  auto extent = attachment_->reservation(put);
  if (!extent) return extent.error();
  if (data.size() != extent->size_bytes) {
    return Error{Code::kInvalidArgument, "write() of " + std::to_string(data.size()) +
                                             " bytes into a put of " +
                                             std::to_string(extent->size_bytes)};
  }
  const std::uint64_t part_bytes =
      std::clamp(data.size() / kWriteParts, kWriteBytesMin, kWriteBytesMax);
  for (std::uint64_t done = 0; done < data.size();) {
    const std::uint64_t size = std::min(part_bytes, data.size() - done);
    auto written =
        write_at(attachment_->writable_fd(), data.subspan(done, size), extent->offset + done);
    if (!written) return written.error();
    done += size;
    if (done == data.size()) break;  // the last part is asked, for it is answered
    auto told =
        attachment_->tell(RequestId{0}, WroteCommand{put.object(), put.incarnation(), done, false});
    if (!told) return told.error();
  }
  attachment_->mark_written(put);
  return attachment_->ask(put.object(),
                          WroteCommand{put.object(), put.incarnation(), data.size(), false});
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
