// SPDX-License-Identifier: Apache-2.0
#include "client/request.h"

#include <sys/mman.h>

#include <utility>

#include "client/attachment.h"

namespace hoplite {

Request::Request(std::shared_ptr<Attachment> attachment, RequestId id, ObjectId object,
                 Incarnation incarnation, std::uint64_t size_bytes)
    : attachment_(std::move(attachment)),
      id_(id),
      object_(object),
      incarnation_(incarnation),
      size_bytes_(size_bytes) {}

Request::~Request() { attachment_->forget(*this); }

bool Request::wait(Duration timeout) { return attachment_->wait(*this, timeout); }

bool Request::is_finished() const { return attachment_->is_finished(*this); }

void Request::cancel() { attachment_->cancel(*this); }

Result<Outcome> Request::take() {
  auto answer = attachment_->take(*this);
  if (!answer) return answer.error();
  if (const auto* error = std::get_if<Error>(&answer->reply)) return *error;
  if (is_seal_) return Outcome{Done{}};
  if (const auto* reserved = std::get_if<Reserved>(&answer->reply)) return Outcome{*reserved};
  if (auto* reduced = std::get_if<Reduced>(&answer->reply)) return Outcome{std::move(*reduced)};
  if (auto* failed = std::get_if<ReduceFailed>(&answer->reply)) return Outcome{std::move(*failed)};
  if (std::holds_alternative<Done>(answer->reply)) return Outcome{Done{}};
  if (const auto* taken = std::get_if<TermTaken>(&answer->reply)) return Outcome{*taken};
  if (auto* seen = std::get_if<VersionSeen>(&answer->reply)) return Outcome{std::move(*seen)};
  if (auto* refused = std::get_if<VersionRefused>(&answer->reply))
    return Outcome{std::move(*refused)};
  if (auto* listed = std::get_if<ChannelsListed>(&answer->reply))
    return Outcome{std::move(*listed)};
  auto& fetched = *std::get_if<Fetched>(&answer->reply);
  if (!fetched.mapped) return Outcome{View(std::move(fetched), std::move(answer->payload))};
  // Private: the first write to a page copies it, so no other process sees the change. The
  // read-only descriptor allows exactly that.
  auto mapping = Mapping::open(attachment_->readonly_fd(), fetched.extent.offset,
                               fetched.meta.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  if (!mapping) return mapping.error();
  return Outcome{View(std::move(fetched), std::move(*mapping), std::move(answer->pin))};
}

}  // namespace hoplite
