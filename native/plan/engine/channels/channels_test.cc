// SPDX-License-Identifier: Apache-2.0
// Version channels between wired engines: terms, the order of versions, watches, and what
// readers hear when a home or a publisher's node dies.
#include "plan/engine/channels/channels.h"

#include <algorithm>

#include "plan/engine/engine_test.h"
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

class ChannelsTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kHome = 2, kPublisher = 0, kReader = 1;

  Term take(std::size_t node) {
    const RequestId request = nodes_.ask(node, TakeTermCommand{id_});
    nodes_.run();
    return nodes_.is<TermTaken>(request) ? std::get<TermTaken>(nodes_.replies(request).back()).term
                                         : Term{};
  }
  static Version version(const Term& term, std::uint64_t n, const std::string& payload = "value") {
    return {{term, n}, false, payload};
  }
  RequestId publish(std::size_t node, const Version& version) {
    const RequestId request = nodes_.ask(node, PublishCommand{id_, version});
    nodes_.run();
    return request;
  }
  RequestId watch(std::size_t node, const VersionNumber& newer_than = {}, bool waits = true) {
    const RequestId request = nodes_.ask(node, WatchCommand{id_, newer_than, waits});
    nodes_.run();
    return request;
  }
  Version find_version(RequestId request) {
    if (!nodes_.is<VersionSeen>(request)) return {};
    return std::get<VersionSeen>(nodes_.replies(request).back()).version;
  }
  std::vector<ChannelRow> list(std::size_t node) {
    const RequestId request = nodes_.ask(node, ListChannelsCommand{});
    nodes_.run();
    return std::get<ChannelsListed>(nodes_.replies(request).back()).rows;
  }
  VersionRefused refusal(RequestId request) {
    if (!nodes_.is<VersionRefused>(request)) return {};
    return std::get<VersionRefused>(nodes_.replies(request).back());
  }

  Nodes nodes_{4};
  const ObjectId id_ = nodes_.object_at(kHome);
};

TEST_F(ChannelsTest, GivesEachPublisherANewerTerm) {
  const Term first = take(kPublisher);
  const Term second = take(kReader);
  EXPECT_GT(first, Term{});
  EXPECT_GT(second, first);
  nodes_.kill(kHome);
  EXPECT_GT(take(kPublisher), second) << "also by another home, which has counted none";
}

TEST_F(ChannelsTest, ShowsAVersionToTheReadersOfAllNodes) {
  const Term term = take(kPublisher);
  std::vector<RequestId> watches;
  for (std::size_t node = 0; node < nodes_.size(); ++node) watches.push_back(watch(node));
  EXPECT_EQ(nodes_.stats(kReader).channel_requests, 1U);
  const Version first = version(term, 1);
  EXPECT_TRUE(nodes_.is<Done>(publish(kPublisher, first)));
  for (const RequestId watch : watches) EXPECT_EQ(find_version(watch), first);
  EXPECT_EQ(nodes_.stats(kReader).channel_requests, 0U);
}

TEST_F(ChannelsTest, ShowsTheNewestOnlyToAReaderThatMissedSome) {
  const Term term = take(kPublisher);
  for (std::uint64_t n = 1; n <= 5; ++n) publish(kPublisher, version(term, n));
  EXPECT_EQ(find_version(watch(kReader, {term, 1})), version(term, 5));
  const RequestId next = watch(kReader, {term, 5});
  EXPECT_TRUE(nodes_.replies(next).empty());
  publish(kPublisher, version(term, 9));
  EXPECT_EQ(find_version(next), version(term, 9));
}

TEST_F(ChannelsTest, AsksTheHomeForTheLatest) {
  EXPECT_TRUE(nodes_.is<VersionSeen>(watch(kReader, {}, false))) << "no version is an answer";
  EXPECT_EQ(nodes_.stats(kHome).channels, 0U) << "and it leaves nothing behind";
  const Term term = take(kPublisher);
  publish(kPublisher, version(term, 3));
  EXPECT_EQ(find_version(watch(kReader, {}, false)), version(term, 3));
  EXPECT_FALSE(find_version(watch(kReader, {term, 3}, false)).exists());
}

TEST_F(ChannelsTest, RefusesAnOlderTermANumberThatIsNotGreaterAndOtherContents) {
  const Term older = take(kPublisher);
  const Term newer = take(kReader);
  EXPECT_TRUE(nodes_.is<Done>(publish(kReader, version(newer, 5))));
  const VersionRefused taken = refusal(publish(kPublisher, version(older, 9)));
  EXPECT_TRUE(taken.is_taken);
  EXPECT_EQ(taken.newest, (VersionNumber{newer, 5}));
  EXPECT_NE(taken.text.find("another publisher has taken the channel"), std::string::npos);
  const VersionRefused lower = refusal(publish(kReader, version(newer, 4)));
  EXPECT_FALSE(lower.is_taken);
  EXPECT_EQ(lower.newest, (VersionNumber{newer, 5}));
  EXPECT_NE(refusal(publish(kReader, version(newer, 5, "other"))).text.find("immutable"),
            std::string::npos);
  EXPECT_TRUE(nodes_.is<Done>(publish(kReader, version(newer, 5)))) << "the same one again";
  EXPECT_TRUE(nodes_.is<Done>(publish(kReader, version(newer, 6))));
}

TEST_F(ChannelsTest, RefusesWhatNoHomeHasGivenAndWhatIsNoVersion) {
  const Term term = take(kPublisher);
  const Term invented{term.epoch, term.counter + 1};
  EXPECT_EQ(nodes_.code(publish(kReader, version(invented, 1))), Code::kInvalidArgument);
  EXPECT_EQ(nodes_.code(publish(kReader, version({Epoch{99}, 1}, 1))), Code::kInvalidArgument);
  EXPECT_EQ(nodes_.code(publish(kReader, version(term, 0))), Code::kInvalidArgument);
  EXPECT_EQ(nodes_.code(publish(kReader, version({term.epoch, 0}, 1))), Code::kInvalidArgument);
  const Version long_one = version(term, 1, std::string(kVersionBytesMax + 1, 'x'));
  EXPECT_EQ(nodes_.code(publish(kReader, long_one)), Code::kInvalidArgument);
  Version end = version(term, 1);
  end.is_end = true;
  EXPECT_EQ(nodes_.code(publish(kReader, end)), Code::kInvalidArgument) << "it has a payload";
}

TEST_F(ChannelsTest, ANewHomeKnowsTheTermAndTheNewestVersion) {
  const Term term = take(kPublisher);
  publish(kPublisher, version(term, 7));
  const RequestId next = watch(kReader, {term, 7});
  nodes_.kill(kHome);
  EXPECT_EQ(find_version(watch(3, {}, false)), version(term, 7));
  EXPECT_TRUE(refusal(publish(kReader, version(term, 6))).text.find("not greater") !=
              std::string::npos);
  EXPECT_TRUE(nodes_.is<Done>(publish(kPublisher, version(term, 8))));
  EXPECT_EQ(find_version(next), version(term, 8)) << "the watch has moved to the new home";
}

// publisher: version 2 -> home │ home: offers │ the home dies. Each number of events between is
// tried: the version is published by the old home or by the next one, and never lost.
TEST_F(ChannelsTest, APublicationEndsThoughItsHomeDiesAtAnyStep) {
  for (int steps = 0; steps < 40; ++steps) {
    Nodes nodes(4);
    const ObjectId id = nodes.object_at(kHome);
    const RequestId take = nodes.ask(kPublisher, TakeTermCommand{id});
    nodes.run();
    const Term term = std::get<TermTaken>(nodes.replies(take).back()).term;
    const RequestId watch = nodes.ask(kReader, WatchCommand{id, {}, true});
    const RequestId published = nodes.ask(kPublisher, PublishCommand{id, version(term, 2)});
    for (int step = 0; step < steps; ++step) nodes.step();
    nodes.kill(kHome);
    EXPECT_TRUE(nodes.is<Done>(published)) << "after " << steps << " events";
    ASSERT_TRUE(nodes.is<VersionSeen>(watch)) << "after " << steps << " events";
    EXPECT_EQ(std::get<VersionSeen>(nodes.replies(watch).back()).version, version(term, 2));
    const RequestId latest = nodes.ask(3, WatchCommand{id, {}, false});
    nodes.run();
    EXPECT_EQ(std::get<VersionSeen>(nodes.replies(latest).back()).version, version(term, 2));
  }
}

TEST_F(ChannelsTest, AWatchGoesOnThoughItsLinkToTheHomeBreaksAtAnyStep) {
  for (int steps = 0; steps < 30; ++steps) {
    Nodes nodes(4);
    const ObjectId id = nodes.object_at(kHome);
    const RequestId take = nodes.ask(kPublisher, TakeTermCommand{id});
    nodes.run();
    const Term term = std::get<TermTaken>(nodes.replies(take).back()).term;
    const RequestId watch = nodes.ask(kReader, WatchCommand{id, {}, true});
    const RequestId published = nodes.ask(kPublisher, PublishCommand{id, version(term, 1)});
    for (int step = 0; step < steps; ++step) nodes.step();
    nodes.cut(kReader, kHome);
    nodes.cut(kPublisher, kHome);
    nodes.run();
    nodes.heal(kReader, kHome);
    nodes.heal(kPublisher, kHome);
    nodes.run();
    EXPECT_TRUE(nodes.is<Done>(published)) << "after " << steps << " events";
    EXPECT_TRUE(nodes.is<VersionSeen>(watch)) << "after " << steps << " events";
  }
}

// home: offers a channel of which nothing is known │ the link breaks │ the link is up. The home
// must offer it again, although it keeps nothing of it. Seed 749 of `hoplite_sim --channels some
// --liar none`.
TEST_F(ChannelsTest, AQuestionAboutAnUnknownChannelIsAnsweredThoughALinkBreaksAtAnyStep) {
  for (int steps = 0; steps < 12; ++steps) {
    Nodes nodes(2);
    const ObjectId id = nodes.object_at(1);
    const RequestId here = nodes.ask(1, WatchCommand{id, {}, false});
    const RequestId there = nodes.ask(0, WatchCommand{id, {}, false});
    for (int step = 0; step < steps; ++step) nodes.step();
    nodes.cut(0, 1);
    nodes.run();
    nodes.heal(0, 1);
    nodes.run();
    EXPECT_TRUE(nodes.is<VersionSeen>(here)) << "after " << steps << " events";
    EXPECT_TRUE(nodes.is<VersionSeen>(there)) << "after " << steps << " events";
  }
}

// Two of four members are no majority, as long as the others may live.
TEST_F(ChannelsTest, PublishesNothingWithoutAMajority) {
  const Term term = take(kPublisher);
  nodes_.cut(kHome, 1);
  nodes_.cut(kHome, 3);
  nodes_.run();
  const RequestId published = publish(kPublisher, version(term, 1));
  EXPECT_TRUE(nodes_.replies(published).empty());
  EXPECT_TRUE(nodes_.replies(watch(kPublisher)).empty()) << "it is visible to nobody";
  EXPECT_TRUE(nodes_.replies(watch(kPublisher, {}, false)).empty()) << "nor is there a latest one";
  nodes_.heal(kHome, 3);
  nodes_.run();
  EXPECT_TRUE(nodes_.is<Done>(published));
}

TEST_F(ChannelsTest, ANodeOfItsOwnPublishesAlone) {
  Nodes alone(1);
  const ObjectId id = alone.object_at(0);
  const RequestId take = alone.ask(0, TakeTermCommand{id});
  alone.run();
  const Term term = std::get<TermTaken>(alone.replies(take).back()).term;
  const RequestId published = alone.ask(0, PublishCommand{id, version(term, 1)});
  alone.run();
  EXPECT_TRUE(alone.is<Done>(published));
}

TEST_F(ChannelsTest, ACancelledWatchLeavesNothingBehind) {
  const RequestId request = watch(kReader);
  nodes_.cancel(kReader, request);
  nodes_.run();
  EXPECT_EQ(nodes_.code(request), Code::kCancelled);
  EXPECT_EQ(nodes_.stats(kReader).channels, 0U);
  EXPECT_EQ(nodes_.stats(kReader).channel_requests, 0U);
  watch(kReader);
  nodes_.lose_client(kReader);
  nodes_.run();
  EXPECT_EQ(nodes_.stats(kReader).channel_requests, 0U);
}

TEST_F(ChannelsTest, ACancelledPublicationLetsTheNextOneGo) {
  const Term term = take(kPublisher);
  nodes_.cut(kPublisher, kHome);
  nodes_.run();
  const RequestId first = publish(kPublisher, version(term, 1));
  const RequestId second = publish(kPublisher, version(term, 2));
  nodes_.cancel(kPublisher, first);
  nodes_.heal(kPublisher, kHome);
  nodes_.run();
  EXPECT_EQ(nodes_.code(first), Code::kCancelled);
  EXPECT_TRUE(nodes_.is<Done>(second));
}

TEST_F(ChannelsTest, TheEndOfAChannelIsAVersionOfIt) {
  const Term term = take(kPublisher);
  publish(kPublisher, version(term, 1));
  const RequestId watched = watch(kReader, {term, 1});
  const Version end{{term, 2}, true, ""};
  EXPECT_TRUE(nodes_.is<Done>(publish(kPublisher, end)));
  EXPECT_EQ(find_version(watched), end);
  EXPECT_TRUE(nodes_.is<Done>(publish(kPublisher, version(term, 3)))) << "it begins again";
}

TEST_F(ChannelsTest, EveryMemberListsTheNewestVersionAndItsOwnReaders) {
  const Term term = take(kPublisher);
  publish(kPublisher, version(term, 1));
  publish(kPublisher, version(term, 2));
  const ChannelReader first{70, {term, 1}, 10, 1, 1000};
  const ChannelReader second{71, {term, 2}, 20, 2, 2000};
  nodes_.ask(kReader, ReadCommand{id_, second});
  nodes_.ask(kReader, ReadCommand{id_, first});
  nodes_.run();
  for (const std::size_t node : {kHome, kPublisher, kReader}) {
    const auto rows = list(node);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].channel, id_);
    EXPECT_EQ(rows[0].newest, version(term, 2));
    EXPECT_EQ(rows[0].is_home, node == kHome);
    const std::vector<ChannelReader> none, last{first};
    EXPECT_EQ(rows[0].readers, node == kReader ? last : none) << "what the client has read last";
  }
}

TEST_F(ChannelsTest, AReaderIsForgottenWhenItSaysSoOrIsLostOrTheChannelEnds) {
  const Term term = take(kPublisher);
  publish(kPublisher, version(term, 1));
  const ChannelReader reader{70, {term, 1}, 10, 1, 1000};
  const auto count_readers = [&] {
    const auto rows = list(kReader);
    return rows.empty() ? 0 : rows[0].readers.size();
  };
  const auto read = [&](const ChannelReader& what) {
    nodes_.ask(kReader, ReadCommand{id_, what});
    nodes_.run();
    return count_readers();
  };
  EXPECT_EQ(read(reader), 1U);
  EXPECT_EQ(read({}), 0U) << "it reads no more";
  EXPECT_EQ(read(reader), 1U);
  nodes_.lose_client(kReader);
  nodes_.run();
  EXPECT_EQ(count_readers(), 0U);
  EXPECT_EQ(read(reader), 1U);
  publish(kPublisher, {{term, 2}, true, ""});
  EXPECT_TRUE(list(kReader).empty()) << "the channel has ended";
  EXPECT_EQ(read(reader), 0U);
  publish(kPublisher, version(term, 3));
  EXPECT_EQ(count_readers(), 0U) << "it begins again without readers";
}

// ---- bounds ----

TEST(ChannelBounds, ThereIsALimitOfLiveChannelsAndIdleOnesAreForgotten) {
  Nodes nodes(2, [](EngineConfig& config) { config.channels_max = 3; });
  const auto take = [&](std::uint8_t tag) {
    const RequestId request = nodes.ask(0, TakeTermCommand{nodes.object_at(1, tag)});
    nodes.run();
    return request;
  };
  const auto begin = [&](std::uint8_t tag) {
    const RequestId taken = take(tag);
    if (!nodes.is<TermTaken>(taken)) return taken;
    const Term term = std::get<TermTaken>(nodes.replies(taken).back()).term;
    const Version version{{term, 1}, false, "value"};
    const RequestId request = nodes.ask(0, PublishCommand{nodes.object_at(1, tag), version});
    nodes.run();
    return request;
  };
  for (std::uint8_t tag = 1; tag <= 3; ++tag) EXPECT_TRUE(nodes.is<Done>(begin(tag)));
  const RequestId refused = begin(4);
  EXPECT_EQ(nodes.code(refused), Code::kStoreFull);
  EXPECT_NE(nodes.text(refused).find("its limit of 3 channels"), std::string::npos);
  const RequestId term = take(1);
  const Version end{{std::get<TermTaken>(nodes.replies(term).back()).term, 1}, true, ""};
  nodes.ask(0, PublishCommand{nodes.object_at(1, 1), end});
  nodes.run();
  EXPECT_TRUE(nodes.is<Done>(begin(4))) << "one was unpublished";
  const RequestId second = take(2);
  const Version ends{{std::get<TermTaken>(nodes.replies(second).back()).term, 1}, true, ""};
  nodes.ask(0, PublishCommand{nodes.object_at(1, 2), ends});
  nodes.run();
  for (std::uint8_t tag = 10; tag < 30; ++tag) EXPECT_TRUE(nodes.is<TermTaken>(take(tag)));
  EXPECT_LE(nodes.stats(0).channels, 2U * 3U) << "of those without a version three are remembered";
  EXPECT_LE(nodes.stats(1).channels, 2U * 3U);
}

TEST(ChannelBounds, ThereIsALimitOfWaitingRequests) {
  Nodes nodes(2, [](EngineConfig& config) { config.channel_requests_max = 4; });
  std::vector<RequestId> asked;
  for (std::uint8_t tag = 0; tag < 5; ++tag) {
    asked.push_back(nodes.ask(0, WatchCommand{nodes.object_at(1, tag), {}, true}));
  }
  nodes.run();
  EXPECT_EQ(nodes.code(asked[4]), Code::kStoreFull);
  EXPECT_NE(nodes.text(asked[4]).find("4 requests about channels"), std::string::npos);
  nodes.cancel(0, asked[0]);
  asked.push_back(nodes.ask(0, WatchCommand{nodes.object_at(1, 9), {}, true}));
  nodes.run();
  EXPECT_TRUE(nodes.replies(asked.back()).empty());
}

TEST(ChannelBounds, AListComesInPagesInTheOrderOfIds) {
  Nodes nodes(1);
  std::vector<ObjectId> all;
  for (std::uint8_t tag = 1; tag <= kChannelRowsMax + 6; ++tag) {
    const ObjectId id = nodes.object_at(0, tag);
    const RequestId taken = nodes.ask(0, TakeTermCommand{id});
    nodes.run();
    const Term term = std::get<TermTaken>(nodes.replies(taken).back()).term;
    nodes.ask(0, PublishCommand{id, {{term, 1}, false, "value"}});
    nodes.run();
    all.push_back(id);
  }
  std::ranges::sort(all);
  std::vector<ObjectId> listed;
  std::vector<std::size_t> pages;
  do {
    const RequestId request =
        nodes.ask(0, ListChannelsCommand{listed.empty() ? ObjectId{} : listed.back()});
    nodes.run();
    const auto rows = std::get<ChannelsListed>(nodes.replies(request).back()).rows;
    for (const ChannelRow& row : rows) listed.push_back(row.channel);
    pages.push_back(rows.size());
  } while (pages.back() > 0);
  EXPECT_EQ(listed, all);
  EXPECT_EQ(pages, (std::vector<std::size_t>{kChannelRowsMax, 6, 0}));
}

// ---- one engine whose peer may say anything ----

class ChannelLies : public OneEngine {
 protected:
  ChannelLies() : OneEngine(3, NodeId{1}) {}
};

// peer: question, ticket 7 │ home: term │ the peer drops the answer, and asks again. Another term
// would end the first one, of which the peer's client may know already.
TEST_F(ChannelLies, ARepeatedQuestionGetsTheSameTerm) {
  const auto ask_again = [&](std::uint64_t ticket) {
    hear(NodeId{2}, ChannelQuestion{id_, ticket, ChannelAsk::kTakeTerm, {}});
    for (const VersionOffer& offer : said<VersionOffer>()) {
      hear(NodeId{2}, VersionAck{id_, offer.round});
    }
    const auto answers = said<ChannelAnswer>();
    return answers.empty() ? Term{} : answers.back().term;
  };
  const Term first = ask_again(7);
  EXPECT_GT(first, Term{});
  EXPECT_EQ(ask_again(7), first);
  EXPECT_GT(ask_again(8), first);
}

TEST_F(ChannelLies, NeitherATermOfTheFutureNorAnOfferOfAnotherMemberCounts) {
  hear(NodeId{2},
       ChannelClaim{id_, {Epoch{900}, 1}, {{{Epoch{900}, 1}, 4}, false, "no"}, true, {}});
  hear(NodeId{2}, VersionOffer{id_, 1, {Epoch{1}, 1}, {{{Epoch{1}, 1}, 4}, false, "no"}, false});
  hear(NodeId{2}, VersionNews{id_, {{{Epoch{1}, 1}, 4}, false, "no"}});
  hear(NodeId{2}, ChannelAnswer{id_, 1, ChannelOutcome::kDone, {}, {}, {}});
  EXPECT_EQ(engine_.stats().channels, 0U);
  hear(NodeId{3}, ChannelQuestion{id_, 1, ChannelAsk::kTakeTerm, {}});
  for (const VersionOffer& offer : said<VersionOffer>()) {
    hear(NodeId{3}, VersionAck{id_, offer.round});
  }
  const auto answers = said<ChannelAnswer>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].term, (Term{Epoch{1}, 1}));
}

TEST_F(ChannelLies, ThereIsALimitOfReaders) {
  const ObjectId id = Nodes(3).object_at(0, 1);
  const Term term{Epoch{0}, 1};  // of an earlier view
  hear(NodeId{2}, ChannelClaim{id, term, {{term, 1}, false, "value"}, false, {}});
  const auto read = [&](std::uint64_t client, std::uint64_t n) {
    const ChannelReader reader{static_cast<std::uint32_t>(client), {term, n}, n, n, n};
    engine_.handle_command({ClientId{client}, RequestId{0}, ReadCommand{id, reader}}, now_);
  };
  const auto list = [&] {
    ask(ListChannelsCommand{});
    for (const auto& reply : deeds<ReplyToClient>()) {
      if (const auto* listed = std::get_if<ChannelsListed>(&reply.reply)) return listed->rows;
    }
    return std::vector<ChannelRow>{};
  };
  for (std::uint64_t client = 1; client <= kChannelReadersMax + 1; ++client) read(client, 1);
  auto rows = list();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].readers.size(), kChannelReadersMax) << "the others are left out";
  read(1, 0);
  read(kChannelReadersMax + 1, 1);
  rows = list();
  EXPECT_EQ(rows[0].readers.size(), kChannelReadersMax) << "one has said that it reads no more";
  EXPECT_EQ(rows[0].readers.back().process, kChannelReadersMax + 1);
}

TEST_F(ChannelLies, AnAcknowledgementOfAnotherRoundOrOfNoMemberCountsForNothing) {
  hear(NodeId{2}, ChannelQuestion{id_, 1, ChannelAsk::kLatest, {}});
  const auto offers = said<VersionOffer>();
  ASSERT_FALSE(offers.empty());
  hear(NodeId{3}, VersionAck{id_, offers[0].round + 1});
  hear(NodeId{3}, VersionAck{id_, 0});
  hear(NodeId{9}, VersionAck{id_, offers[0].round});
  EXPECT_TRUE(said<ChannelAnswer>().empty());
  hear(NodeId{3}, VersionAck{id_, offers[0].round});
  EXPECT_EQ(said<ChannelAnswer>().size(), 1U);
}

}  // namespace
}  // namespace hoplite
