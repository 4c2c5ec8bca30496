// SPDX-License-Identifier: Apache-2.0
#include "sim/model/describe.h"

namespace hoplite::sim {
namespace {

// Words and numbers with a space between.
class Line {
 public:
  explicit Line(std::string first) : text_(std::move(first)) {}
  Line& add(const std::string& word) {
    text_ += ' ';
    text_ += word;
    return *this;
  }
  Line& add(const char* name, std::uint64_t value) {
    return add(std::string(name) + '=' + std::to_string(value));
  }
  template <typename Tag, typename Rep>
  Line& add(const char* name, Id<Tag, Rep> id) {
    return add(name, std::uint64_t{id.value});
  }
  Line& add(const ObjectId& object) { return add(short_name(object).substr(0, 8)); }
  Line& add(const char* name, const Extent& extent) {
    return add(std::string(name) + "=[" + std::to_string(extent.offset) + "+" +
               std::to_string(extent.size_bytes) + "]");
  }
  Line& add(const char* name, const VersionNumber& number) {
    return add(std::string(name) + '=' + std::to_string(number.term.epoch.value) + '.' +
               std::to_string(number.term.counter) + '#' + std::to_string(number.n));
  }
  Line& add(const char* name, const Version& version) {
    return add(name, version.number).add(version.is_end ? "end" : "");
  }
  template <typename T>
  Line& list(const char* name, const std::vector<T>& values) {
    std::string text = std::string(name) + "={";
    for (const T& value : values) {
      if constexpr (std::is_integral_v<T>) {
        text += std::to_string(value) + ",";
      } else {
        text += std::to_string(value.value) + ",";
      }
    }
    return add(text + "}");
  }
  Line& sources(const std::vector<ReduceSource>& sources) {
    for (const auto& s : sources) {
      add(std::to_string(s.index) + (s.failed ? "!" : ":" + short_name(s.object).substr(0, 8)));
    }
    return *this;
  }
  [[nodiscard]] std::string str() const { return text_; }

 private:
  std::string text_;
};

std::string describe_claim(const Claim& m) {
  Line line("Claim");
  line.add(m.object).add("inc", m.incarnation).add("te", m.target_epoch);
  line.add("size", m.meta.size_bytes);
  if (m.wants) line.add("wants");
  if (m.exists) line.add("exists");
  if (m.pinned) line.add("pinned");
  if (m.orphaned) line.add("orphaned");
  if (m.elsewhere) line.add("elsewhere");
  if (!m.committed) line.add("tentative");
  if (m.owner != kNoNode) line.add("owner", m.owner);
  if (m.copies > 0) line.add("copies", m.copies);
  if (m.awaits_copies) line.add("awaits copies");
  static constexpr const char* kStates[] = {"idle", "receiving", "root", "complete"};
  for (const StripeClaim& s : m.stripes) {
    line.add("s" + std::to_string(s.stripe.value) + ":" +
             kStates[static_cast<std::size_t>(s.state)] + "/" + std::to_string(s.ready) + "<" +
             std::to_string(s.sender.value) + "#" + std::to_string(s.lease.value));
  }
  return line.str();
}

std::string describe_progress(const Progress& m) {
  Line line("Progress");
  line.add(m.object);
  for (const StripeProgress& s : m.stripes) {
    line.add("s" + std::to_string(s.stripe.value) + ":" + std::to_string(s.ready) + "#" +
             std::to_string(s.lease.value));
  }
  return line.str();
}

std::string describe_adopt(const Adopt& m) {
  Line line("Adopt");
  line.add(m.object).add("te", m.target_epoch).add("owner", m.owner);
  return line.add("copies", m.copies).str();
}

std::string describe_standing(const Standing& m) {
  Line line("Standing");
  line.add(m.object).add(m.orphaned ? "orphaned" : "");
  return line.add(m.elsewhere ? "elsewhere" : "").add(m.copied ? "copied" : "").str();
}

std::string describe_grant(const Grant& m) {
  Line line("Grant");
  line.add(m.object).add("inc", m.incarnation).add("te", m.target_epoch).add("of", m.stripe_count);
  for (const StripeLease& each : m.leases) {
    line.add("stripe", each.stripe).add("sender", each.sender).add("lease", each.lease);
  }
  return line.str();
}

std::string describe_claim(const ChannelClaim& m) {
  Line line("ChannelClaim");
  line.add(m.channel).add("term", VersionNumber{m.term, 0}).add("newest", m.newest);
  return line.add(m.watches ? "watches" : "").add("visible", m.visible).str();
}

std::string describe_question(const ChannelQuestion& m) {
  static constexpr const char* kAsks[] = {"term", "latest", "publish"};
  Line line("ChannelQuestion");
  line.add(m.channel).add(kAsks[static_cast<std::size_t>(m.ask)]).add("ticket", m.ticket);
  return line.add("version", m.version).str();
}

std::string describe_ack(const VersionAck& m) {
  return Line("VersionAck").add(m.channel).add("round", m.round).str();
}

std::string describe_news(const VersionNews& m) {
  return Line("VersionNews").add(m.channel).add("version", m.version).str();
}

std::string describe_pull(const PullStart& m) {
  Line line("PullStart");
  line.add(m.object).add("te", m.target_epoch).add("stripe", m.stripe);
  return line.add("of", m.stripe_count).add("from", m.from).add("credits", m.credits).str();
}

std::string describe_offer(const VersionOffer& m) {
  Line line("VersionOffer");
  line.add(m.channel).add("round", m.round).add("term", VersionNumber{m.term, 0});
  return line.add("newest", m.newest).add(m.is_bare ? "bare" : "").str();
}

std::string describe_answer(const ChannelAnswer& m) {
  Line line("ChannelAnswer");
  line.add(m.channel).add("ticket", m.ticket).add("term", VersionNumber{m.term, 0});
  return line.add("outcome", static_cast<std::uint64_t>(m.outcome)).add("newest", m.newest).str();
}

std::string describe_body(const PeerMessage& body) {
  return std::visit(
      Visitor{
          [](const Claim& m) { return describe_claim(m); },
          [](const Delete& m) { return Line("Delete").add(m.object).add("upto", m.upto).str(); },
          [](const Locate& m) {
            return Line("Locate").add(m.object).add("failed", m.failed).str();
          },
          [](const ReduceWant& m) {
            Line line("ReduceWant");
            line.add(m.target).add("count", m.count).add("of", m.source_count);
            return line.add("first", m.first).sources(m.confirmed).add("seen", m.seen).str();
          },
          [](const ReduceReport& m) {
            Line line("ReduceReport");
            line.add(m.target).add("te", m.target_epoch).list("folded", m.folded);
            line.list("lost", m.lost).list("committed", m.committed).add("caller", m.caller);
            return line.add("code", static_cast<std::uint64_t>(m.code)).str();
          },
          [](const Progress& m) { return describe_progress(m); },
          [](const ResyncDone&) { return std::string("ResyncDone"); },
          [](const ResyncWanted&) { return std::string("ResyncWanted"); },
          [](const Grant& m) { return describe_grant(m); },
          [](const Located& m) {
            return Line("Located").add(m.object).add("sender", m.sender).str();
          },
          [](const Push& m) { return Line("Push").add(m.object).list("forward", m.forward).str(); },
          [](const PushTo& m) {
            return Line("PushTo").add(m.object).list("receivers", m.receivers).str();
          },
          [](const Lost& m) { return Line("Lost").add(m.object).add(m.text).str(); },
          [](const Deleted& m) { return Line("Deleted").add(m.object).add("upto", m.upto).str(); },
          [](const Drop& m) { return Line("Drop").add(m.object).add("upto", m.upto).str(); },
          [](const ReduceOwn& m) {
            Line line("ReduceOwn");
            line.add(m.target).add("te", m.target_epoch).list("owned", m.owned);
            line.add("of", m.stripe_count).add(m.deterministic ? "fixed" : "").sources(m.members);
            return line.add(m.sealed ? "sealed" : "").add(m.is_branch ? "branch" : "").str();
          },
          [](const ReduceState& m) {
            Line line("ReduceState");
            line.add(m.target).add("te", m.target_epoch);
            line.add("phase", static_cast<std::uint64_t>(m.phase)).list("members", m.members);
            return line.list("lost", m.lost).add("caller", m.caller).add(m.text).str();
          },
          [](const PullStart& m) { return describe_pull(m); },
          [](const Credit& m) { return Line("Credit").add("blocks", m.blocks).str(); },
          [](const PullStop&) { return std::string("PullStop"); },
          [](const Orphan& m) { return Line("Orphan").add(m.object).add("upto", m.upto).str(); },
          [](const Adopt& m) { return describe_adopt(m); },
          [](const Standing& m) { return describe_standing(m); },
          [](const ChannelClaim& m) { return describe_claim(m); },
          [](const ChannelQuestion& m) { return describe_question(m); },
          [](const VersionAck& m) { return describe_ack(m); },
          [](const VersionOffer& m) { return describe_offer(m); },
          [](const VersionNews& m) { return describe_news(m); },
          [](const ChannelAnswer& m) { return describe_answer(m); },
          [](const MakeExcerpt& m) {
            return Line("MakeExcerpt").add(m.excerpt.object).add(m.excerpt.source.object).str();
          },
          [](const PullRefused& m) {
            return Line("PullRefused").add("code", static_cast<std::uint64_t>(m.code)).str();
          },
      },
      body);
}

}  // namespace

std::string describe(const Message& message) {
  return Line(describe_body(message.body))
      .add("epoch", message.view_epoch)
      .add("t", message.transfer)
      .str();
}

std::string describe(const Reply& reply) {
  return std::visit(
      Visitor{
          [](const Reserved& r) { return Line("Reserved").add("at", r.extent).str(); },
          [](const Fetched& r) {
            return Line("Fetched").add("inc", r.incarnation).add("at", r.extent).str();
          },
          [](const Reduced& r) { return Line("Reduced").list("members", r.members).str(); },
          [](const Done&) { return std::string("Done"); },
          [](const Error& e) {
            return Line("Error").add("code", static_cast<std::uint64_t>(e.code)).add(e.text).str();
          },
          [](const ReduceFailed& r) {
            return Line("ReduceFailed").list("lost", r.lost).add(r.text).str();
          },
          [](const TermTaken& r) {
            return Line("TermTaken").add("term", VersionNumber{r.term, 0}).str();
          },
          [](const VersionSeen& r) { return Line("VersionSeen").add("version", r.version).str(); },
          [](const VersionRefused& r) { return Line("VersionRefused").add(r.text).str(); },
          [](const ChannelsListed& r) {
            return Line("ChannelsListed").add("rows", r.rows.size()).str();
          },
      },
      reply);
}

std::string describe(const Action& action) {
  return std::visit(
      Visitor{
          [](const SendMessage& a) {
            return Line("-> " + std::to_string(a.to.value)).add(describe(a.message)).str();
          },
          [](const SendBlock& a) {
            Line line("=> " + std::to_string(a.to.value));
            line.add("block").add(a.header.object).add("offset", a.header.offset);
            return line.add("t", a.header.transfer).add("te", a.header.target_epoch).str();
          },
          [](const OpenReceive& a) {
            Line line("open");
            line.add("t", a.transfer).add("from", a.from).add(a.object).add("te", a.target_epoch);
            line.add("stripe", a.stripe).add("of", a.stripe_count);
            return line.add("at", a.base).add("slots", a.slots).str();
          },
          [](const CloseReceive& a) {
            return Line("close").add("t", a.transfer).add("from", a.from).str();
          },
          [](const Finish& a) {
            return Line("finish").add("into", a.into).add("from", a.from).str();
          },
          [](const Fold& a) {
            return Line(a.first ? "copy" : "fold").add("into", a.into).add("from", a.from).str();
          },
          [](const WriteInline& a) { return Line("write").add("at", a.extent).str(); },
          [](const ReplyToClient& a) {
            return Line("reply").add("request", a.request).add(describe(a.reply)).str();
          },
          [](const Connect& a) { return Line("connect").add("to", a.member.node).str(); },
          [](const Disconnect& a) { return Line("disconnect").add("from", a.node).str(); },
          [](const ReportDeath& a) { return Line("report death").add("of", a.node).str(); },
          [](const ReportDrained&) { return std::string("drained"); },
          [](const SpillJob& a) {
            static constexpr const char* kWays[] = {"spill", "read back", "free"};
            return Line(kWays[static_cast<std::size_t>(a.way)])
                .add(a.object)
                .add("at", a.arena)
                .add("file", a.file)
                .str();
          },
          [](const RebuildJob& a) {
            Line line(a.way == RebuildWay::kMake ? "rebuild" : "forget");
            return line.add(a.object).add("at", a.target).add("deltas", a.deltas.size()).str();
          },
          [](const TellListing& a) {
            Line line("list");
            return line.add("objects", a.listing.objects.size())
                .add("transfers", a.listing.transfers.size())
                .str();
          },
      },
      action);
}

std::string describe(const IoEvent& event) {
  return std::visit(
      Visitor{
          [](const MessageIn& e) {
            return Line("<- " + std::to_string(e.from.value)).add(describe(e.message)).str();
          },
          [](const BlockLanded& e) {
            Line line("<= " + std::to_string(e.from.value));
            return line.add("block", e.block).add("t", e.transfer).str();
          },
          [](const BlockSent& e) {
            return Line("sent").add("to", e.to).add("bytes", e.size_bytes).str();
          },
          [](const ReceiveClosed& e) {
            return Line("receive closed").add("from", e.from).add("t", e.transfer).str();
          },
          [](const SpillDone& e) {
            return Line("spill done").add("spill", e.spill).add(e.error).str();
          },
          [](const RebuildDone& e) {
            Line line(e.is_whole ? "rebuilt whole" : "rebuilt");
            return line.add("rebuild", e.rebuild).add(e.error).str();
          },
          [](const LinkUp& e) { return Line("link up").add("to", e.node).str(); },
          [](const LinkDown& e) { return Line("link down").add("to", e.node).str(); },
          [](const PeerDead& e) {
            Line line(e.is_certain ? "peer dead" : "peer out of reach");
            return line.add("node", e.node).add("life", e.incarnation).str();
          },
      },
      event);
}

std::string describe(const Command& command) {
  Line line("client " + std::to_string(command.client.value));
  line.add("request", command.request);
  std::visit(
      Visitor{
          [&](const PutCommand& c) {
            line.add("put").add(c.object).add("inc", c.incarnation).add("size", c.meta.size_bytes);
          },
          [&](const WroteCommand& c) { line.add("wrote").add(c.object).add("upto", c.upto_bytes); },
          [&](const GetCommand& c) {
            line.add("get").add(c.object);
            if (c.upto_bytes != kAllBytes) line.add("upto", c.upto_bytes);
          },
          [&](const RebuildCommand& c) {
            line.add("rebuild").add(c.object).add("of").add(c.base.object);
          },
          [&](const ExcerptCommand& c) {
            line.add("part").add(c.excerpt.object).add("of").add(c.excerpt.source.object);
          },
          [&](const ReleaseCommand& c) { line.add("release").add(c.object); },
          [&](const DeleteCommand& c) { line.add("delete").add(c.object).add("upto", c.upto); },
          [&](const ReduceCommand& c) {
            line.add("reduce").add(c.target).add("count", c.count).add("of", c.source_count);
          },
          [&](const ReduceSourceCommand& c) {
            line.add("source").add(c.target).sources({c.source});
          },
          [&](const CancelCommand& c) { line.add("cancel").add(c.object); },
          [&](const ClientLostCommand&) { line.add("lost"); },
          [&](const SetViewCommand& c) { line.add("view").add("epoch", c.epoch); },
          [&](const EchoCommand&) { line.add("echo"); },
          [&](const TakeTermCommand& c) { line.add("take term").add(c.channel); },
          [&](const PublishCommand& c) {
            line.add("publish").add(c.channel).add("version", c.version);
          },
          [&](const WatchCommand& c) {
            line.add(c.wait ? "watch" : "latest").add(c.channel).add("newer", c.newer_than);
          },
          [&](const ListChannelsCommand&) { line.add("list channels"); },
          [&](const ReadCommand& c) {
            line.add("read").add(c.channel).add("version", c.reader.number);
          },
          [&](const OrphanCommand& c) { line.add("orphan").add(c.object).add("upto", c.upto); },
          [&](const KeepCommand& c) { line.add("keep").add(c.object).add("copies", c.copies); },
          [&](const DrainCommand&) { line.add("drain"); },
          [&](const ListCommand& c) {
            line.add("list").add("objects", c.objects_max).add("transfers", c.transfers_max);
          },
      },
      command.body);
  return line.str();
}

}  // namespace hoplite::sim
