// SPDX-License-Identifier: Apache-2.0
#include "client/view.h"

#include <utility>

#include "client/attachment.h"

namespace hoplite {

Pin::Pin(std::shared_ptr<Attachment> attachment, ObjectId object, Incarnation incarnation)
    : attachment_(std::move(attachment)),
      object_(object),
      incarnation_(incarnation),
      fork_count_(attachment_->count_pin()) {}

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release();
    attachment_ = std::move(other.attachment_);
    object_ = other.object_;
    incarnation_ = other.incarnation_;
    fork_count_ = other.fork_count_;
  }
  return *this;
}

void Pin::forget() noexcept {
  if (attachment_ != nullptr) std::exchange(attachment_, nullptr)->uncount_pin();
}

void Pin::release() noexcept {
  if (attachment_ == nullptr) return;
  const auto attachment = std::exchange(attachment_, nullptr);
  attachment->release(object_, incarnation_, fork_count_);
}

View::View(Fetched fetched, Bytes payload)
    : fetched_(std::move(fetched)), payload_(std::move(payload)), bytes_(payload_) {}

View::View(Fetched fetched, Mapping mapping, Pin pin)
    : fetched_(std::move(fetched)),
      pin_(std::move(pin)),
      mapping_(std::move(mapping)),
      bytes_(mapping_.bytes()) {}

View& View::operator=(View&& other) noexcept {
  if (this != &other) {
    mapping_ = std::move(other.mapping_);  // unmaps the old one before its pin goes
    pin_ = std::move(other.pin_);
    fetched_ = std::move(other.fetched_);
    payload_ = std::move(other.payload_);
    bytes_ = other.bytes_;
  }
  return *this;
}

}  // namespace hoplite
