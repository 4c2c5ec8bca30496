// SPDX-License-Identifier: Apache-2.0
// Version channels (decision 43): the commands and answers of clients, and the messages between
// members, and their limits. A channel is a name whose newest version readers wait for. Its home, a
// member that the channel's id chooses as an object's id does, decides the order of its versions.
// Lists are in moment.h. Plain data; reached through messages.h; bytes in docs/internals/wire.md.
#pragma once

#include <string>

#include "plan/messages/types.h"

namespace hoplite {

// All members keep the newest version of every channel, 16 MiB at most: the payload names an object
// and says how to read it. Beyond the second limit no publisher gets a term; beyond the third one a
// node refuses its clients' requests. The others bound a page of a list: its rows, and the readers
// in all of them, which is how many a node remembers.
inline constexpr std::size_t kVersionBytesMax = 4_KiB, kChannelsMax = 4096;
inline constexpr std::size_t kChannelRequestsMax = 16'384;
inline constexpr std::size_t kChannelRowsMax = 64, kChannelReadersMax = 2048;
static_assert(kControlFrameBytesMax >=
                  (kVersionBytesMax + 128) * kChannelRowsMax + 64 * kChannelReadersMax,
              "a page of a list of channels fits into one frame");

// The right of one publisher to publish. A newer term ends all older ones. Members vote on the
// epoch and its home counts, so no term is ever given twice.
struct Term {
  Epoch epoch;
  std::uint32_t counter = 0;  // within the epoch, from 1 on
  auto operator<=>(const Term&) const = default;
};
struct VersionNumber {  // n = 0: no version
  Term term;
  std::uint64_t n = 0;  // chosen by the publisher, growing within its term
  auto operator<=>(const VersionNumber&) const = default;
};
struct Version {  // immutable: one number never has two contents
  VersionNumber number;
  bool is_end = false;  // the channel was unpublished; a later version begins it again
  std::string payload;  // at most kVersionBytesMax bytes, which belong to the publisher
  [[nodiscard]] bool exists() const { return number.n > 0; }
  bool operator==(const Version&) const = default;
};

// ---- commands of clients, and their answers ----

struct TakeTermCommand {  // answered by TermTaken
  ObjectId channel;
};
struct PublishCommand {  // answered by Done once the version is visible, or by VersionRefused
  ObjectId channel;
  Version version;
};
struct WatchCommand {  // answered by VersionSeen
  ObjectId channel;
  VersionNumber newer_than;
  bool wait = true;  // false: the home answers at once, with no version if none is newer
};

struct TermTaken {
  Term term;
  VersionNumber newest;  // visible by then
  Term before;           // the newest term before this one
};
struct VersionSeen {
  Version version;
};
struct VersionRefused {  // of code kVersionRefused
  VersionNumber newest;
  bool is_taken = false;  // True if a newer term was taken, so that no retry can succeed
  std::string text;
};

// ---- to the home of a channel ----

struct ChannelClaim {  // all that the sender knows and wants of `channel`
  ObjectId channel;
  Term term;              // the newest one that it has heard of
  Version newest;         // that it has acknowledged; perhaps not visible yet
  bool watches = false;   // it wants to hear of each version that becomes visible
  VersionNumber visible;  // the newest one that it has heard of as visible
  bool operator==(const ChannelClaim&) const = default;
};
enum class ChannelAsk : std::uint8_t { kTakeTerm = 0, kLatest = 1, kPublish = 2 };
struct ChannelQuestion {  // repeated, with the same ticket, until ChannelAnswer comes
  ObjectId channel;
  std::uint64_t ticket = 0;  // of the sender's node; each is higher than the ones before
  ChannelAsk ask = ChannelAsk::kTakeTerm;
  Version version;  // to publish
  bool operator==(const ChannelQuestion&) const = default;
};
struct VersionAck {  // the sender keeps what the offer of that round said
  ObjectId channel;
  std::uint64_t round = 0;
  bool operator==(const VersionAck&) const = default;
};

// ---- from the home ----

// To every member, which keeps it and answers with VersionAck, or with a claim if it knows more.
struct VersionOffer {
  ObjectId channel;
  std::uint64_t round = 0;
  Term term;
  Version newest;
  bool is_bare = false;  // True if the payload is left out, because the receiver has it
  bool operator==(const VersionOffer&) const = default;
};
struct VersionNews {  // to nodes that watch: it is visible
  ObjectId channel;
  Version version;
  bool operator==(const VersionNews&) const = default;
};
enum class ChannelOutcome : std::uint8_t {
  kDone = 0,
  kTaken = 1,       // a newer term was taken
  kNotNewer = 2,    // its number is not greater than the newest
  kOtherBytes = 3,  // that number has other contents
  kNotGiven = 4,    // no home has given that term
  kFull = 5,        // the cluster has as many channels as it may
};
inline constexpr int kChannelOutcomeCount = 6;
struct ChannelAnswer {
  ObjectId channel;
  std::uint64_t ticket = 0;
  ChannelOutcome outcome = ChannelOutcome::kDone;
  Term term;       // taken, or the newest one
  Version newest;  // visible; its payload only for kLatest
  Term before;     // for kTakeTerm: the newest term before that one
  bool operator==(const ChannelAnswer&) const = default;
};

}  // namespace hoplite
