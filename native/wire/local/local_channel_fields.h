// SPDX-License-Identifier: Apache-2.0
// The fields and types of the frames between a client and its node about version channels, like
// local_fields.h, which is the only one that uses them.
#pragma once

#include "wire/channel_fields.h"
#include "wire/local/local_frame.h"

namespace hoplite::wire {

template <typename A>
void fields(A& a, Of<A, TakeTermCommand> m) {
  fields(a, m.channel);
}
template <typename A>
void fields(A& a, Of<A, PublishCommand> m) {
  fields(a, m.channel);
  fields(a, m.version);
}
template <typename A>
void fields(A& a, Of<A, WatchCommand> m) {
  fields(a, m.channel);
  fields(a, m.newer_than);
  a.flag(m.wait);
}
template <typename A>
void fields(A& a, Of<A, ListChannelsCommand> m) {
  fields(a, m.after);
}
template <typename A>
void fields(A& a, Of<A, ChannelReader> reader) {
  a.number(reader.process);
  fields(a, reader.number);
  a.number(reader.version);
  a.number(reader.ordinal);
  a.number(reader.time_us);
}
template <typename A>
void fields(A& a, Of<A, ReadCommand> m) {
  fields(a, m.channel);
  fields(a, m.reader);
}
template <typename A>
void fields(A& a, Of<A, TermTaken> m) {
  fields(a, m.term);
  fields(a, m.newest);
  fields(a, m.before);
}
template <typename A>
void fields(A& a, Of<A, VersionSeen> m) {
  fields(a, m.version);
}
template <typename A>
void fields(A& a, Of<A, VersionRefused> m) {
  fields(a, m.newest);
  a.flag(m.is_taken);
  a.text(m.text, kErrorTextBytesMax);
}
inline constexpr std::size_t kVersionNumberBytes = 8 + 4 + 8;
inline constexpr std::size_t kChannelReaderBytes = 4 + kVersionNumberBytes + 3 * 8;
inline constexpr std::size_t kChannelRowBytes =
    kObjectIdBytes + kVersionNumberBytes + 1 + 4 + 1 + 4;
template <typename A>
void fields(A& a, Of<A, ChannelsListed> m) {
  each(a, m.rows, kChannelRowsMax, kChannelRowBytes, [&](auto& row) {
    fields(a, row.channel);
    fields(a, row.newest);
    a.flag(row.is_home);
    each(a, row.readers, kChannelReadersMax, kChannelReaderBytes,
         [&](auto& reader) { fields(a, reader); });
  });
}

constexpr LocalType type_of(const TakeTermCommand&) { return LocalType::kTakeTerm; }
inline LocalType type_of(const PublishCommand&) { return LocalType::kPublish; }
constexpr LocalType type_of(const WatchCommand&) { return LocalType::kWatch; }
constexpr LocalType type_of(const ReadCommand&) { return LocalType::kRead; }
constexpr LocalType type_of(const ListChannelsCommand&) { return LocalType::kListChannels; }
constexpr LocalType type_of(const TermTaken&) { return LocalType::kTermTaken; }
inline LocalType type_of(const VersionSeen&) { return LocalType::kVersionSeen; }
inline LocalType type_of(const VersionRefused&) { return LocalType::kVersionRefused; }
inline LocalType type_of(const ChannelsListed&) { return LocalType::kChannelsListed; }

}  // namespace hoplite::wire
