// SPDX-License-Identifier: Apache-2.0
// The fields of the frames about version channels, like directory_fields.h. Used by frame.cc
// and sim/model/liar.cc, and by local_channel_fields.h.
#pragma once

#include "wire/frame.h"
#include "wire/shared_fields.h"

namespace hoplite::wire {

inline constexpr int kChannelAskCount = static_cast<int>(ChannelAsk::kPublish) + 1;

template <typename A>
void fields(A& a, Of<A, Term> term) {
  id(a, term.epoch);
  a.number(term.counter);
}
template <typename A>
void fields(A& a, Of<A, VersionNumber> number) {
  fields(a, number.term);
  a.number(number.n);
}
template <typename A>
void fields(A& a, Of<A, Version> version) {
  fields(a, version.number);
  a.flag(version.is_end);
  a.text(version.payload, kVersionBytesMax);
}

template <typename A>
void fields(A& a, Of<A, ChannelClaim> m) {
  fields(a, m.channel);
  fields(a, m.term);
  fields(a, m.newest);
  a.flag(m.watches);
  fields(a, m.visible);
}
template <typename A>
void fields(A& a, Of<A, ChannelQuestion> m) {
  fields(a, m.channel);
  a.number(m.ticket);
  a.enumeration(m.ask, kChannelAskCount);
  fields(a, m.version);
}
template <typename A>
void fields(A& a, Of<A, VersionAck> m) {
  fields(a, m.channel);
  a.number(m.round);
}
template <typename A>
void fields(A& a, Of<A, VersionOffer> m) {
  fields(a, m.channel);
  a.number(m.round);
  fields(a, m.term);
  fields(a, m.newest);
  a.flag(m.is_bare);
}
template <typename A>
void fields(A& a, Of<A, VersionNews> m) {
  fields(a, m.channel);
  fields(a, m.version);
}
template <typename A>
void fields(A& a, Of<A, ChannelAnswer> m) {
  fields(a, m.channel);
  a.number(m.ticket);
  a.enumeration(m.outcome, kChannelOutcomeCount);
  fields(a, m.term);
  fields(a, m.newest);
  fields(a, m.before);
}

}  // namespace hoplite::wire
