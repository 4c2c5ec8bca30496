// SPDX-License-Identifier: Apache-2.0
#include "client/unsealed.h"

#include <string>
#include <utility>

#include "client/attachment.h"
#include "client/fork_guard.h"

namespace hoplite {

Unsealed::Unsealed(std::shared_ptr<Attachment> attachment, std::shared_ptr<Request> put,
                   Extent extent, Mapping mapping)
    : attachment_(std::move(attachment)),
      put_(std::move(put)),
      extent_(extent),
      mapping_(std::move(mapping)) {}

Unsealed::~Unsealed() {
  unmap_shared(mapping_);
  const bool is_kept = sealing_ != nullptr && attachment_->has_pin(*sealing_);
  sealing_.reset();  // releases the pin, if it has one
  if (!is_kept) attachment_->release_range(*put_);
}

Error Unsealed::sealed_error() const {
  return {Code::kInvalidArgument, "object " + short_name(put_->object()) + " is sealed already"};
}

Error Unsealed::cancelled_error() const {
  return {Code::kCancelled, "the put of object " + short_name(put_->object()) +
                                " was cancelled; make a new empty one"};
}

Result<void> Unsealed::report(std::uint64_t upto_bytes) {
  if (auto usable = attachment_->check(); !usable) return usable.error();
  if (is_sealed_) return sealed_error();
  if (upto_bytes > extent_.size_bytes) {
    return Error{Code::kInvalidArgument, "object " + short_name(put_->object()) + " has " +
                                             std::to_string(extent_.size_bytes) + " bytes, not " +
                                             std::to_string(upto_bytes) +
                                             "; report how many of them are written"};
  }
  if (!attachment_->is_wanted(*put_)) return cancelled_error();
  if (upto_bytes == extent_.size_bytes) return {};
  return attachment_->send_command(
      RequestId{0}, WroteCommand{put_->object(), put_->incarnation(), upto_bytes, false});
}

Result<std::shared_ptr<Request>> Unsealed::seal() {
  if (auto usable = attachment_->check(); !usable) return usable.error();
  if (is_sealed_.exchange(true)) return sealed_error();
  if (!attachment_->is_wanted(*put_)) return cancelled_error();
  // Counts the pin first, so that a child forked before the mapping is private keeps the pin alive.
  Pin pin(attachment_, put_->object(), put_->incarnation());
  if (auto mapped = make_private(mapping_, attachment_->readonly_fd(), extent_.offset); !mapped) {
    pin.forget();
    return mapped.error();
  }
  const WroteCommand whole{put_->object(), put_->incarnation(), extent_.size_bytes, true};
  auto sealing = attachment_->begin_request(put_->object(), whole, {}, 0, std::move(pin));
  if (sealing) sealing_ = *sealing;
  return sealing;
}

}  // namespace hoplite
