// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/home.h"

#include <utility>

#include "plan/engine/owners.h"

namespace hoplite {

void Home::handle_claim(NodeId from, const Claim& claim, Epoch epoch, Bytes payload) {
  const bool carries = from != engine_.config.node && names_bytes(claim) &&
                       claim.stripes.size() == 1 &&
                       claim.stripes[0].state == StripeState::kComplete &&
                       claim.meta.size_bytes <= engine_.config.inline_bytes_max && claim.pinned &&
                       payload.size() == claim.meta.size_bytes;
  if (!carries || engine_.directory.is_deleted(claim.object)) {
    return engine_.directory.handle_claim(from, claim, epoch, engine_.now);
  }
  engine_.directory.handle_claim(from, claim, epoch, engine_.now,
                                 copy_small(claim, std::move(payload)));
}

// The home keeps a copy of small objects, so that a get is one push away (decision 18). Returns
// what this node says of a copy that it made.
std::optional<Claim> Home::copy_small(const Claim& claim, Bytes payload) {
  LocalObject& object = engine_.objects.make(claim.object);
  if (object.has_bytes() && object.incarnation >= claim.incarnation) return std::nullopt;
  engine_.folds.end_fold(claim.object);  // the whole result is here
  engine_.objects.end_put(claim.object, object, "put again by a later attempt");
  object.begin(name_of_bytes(claim), claim.meta, Keep::kCopy, Finality::kFinal);
  engine_.objects.store_small(claim.object, object, std::move(payload));
  LocalObject* const stored = engine_.objects.find(claim.object);
  if (stored != nullptr && stored->extent) return make_claim(claim.object, *stored, false);
  // Nothing holds back the nodes whose puts bring such copies. A copy is therefore made at once or
  // not at all.
  if (stored != nullptr && !stored->is_wanted()) {
    engine_.objects.drop_object(claim.object, claim.incarnation, Cause::kLost);
  }
  return std::nullopt;
}

void Home::handle_progress(NodeId from, const Progress& progress) {
  engine_.directory.handle_progress(from, progress, engine_.now);
}

void Home::handle_delete(NodeId from, const Delete& remove) {
  engine_.directory.handle_delete(from, remove, engine_.now);
  engine_.reduces.handle_delete(remove.object);
}

void Home::handle_orphan(const Orphan& orphan) {
  engine_.directory.handle_orphan(orphan, engine_.now);
}

void Home::handle_locate(NodeId from, const Locate& locate) {
  engine_.directory.handle_locate(from, locate, engine_.now);
}

void Home::handle_reduce_want(NodeId from, const ReduceWant& want) {
  const bool sane =
      want.count >= 1 && want.count <= want.source_count && want.source_count <= kReduceSourcesMax;
  if (!sane) return;
  if (engine_.directory.is_deleted(want.target)) {
    ReduceState state;
    state.target = want.target;
    state.target_epoch = want.seen;
    state.phase = ReducePhase::kFailed;
    state.code = Code::kCancelled;
    state.text = "reduce of " + short_name(want.target) + " was cancelled: its target was deleted";
    return engine_.outgoing.send(from, std::move(state));
  }
  engine_.reduces.handle_want(from, want, engine_.peers.view());
}

void Home::handle_reduce_report(NodeId from, const ReduceReport& report) {
  if (engine_.directory.is_deleted(report.target)) {
    return engine_.outgoing.send(from, Drop{report.target, Incarnation{1}, true});
  }
  engine_.reduces.handle_report(from, report, engine_.peers.view());
}

void Home::handle_push(const Push& push, Bytes payload) {
  if (!names_bytes(push) || engine_.keeping.is_deleted(push.object, push.incarnation)) return;
  if (payload.size() != push.meta.size_bytes ||
      push.meta.size_bytes > engine_.config.inline_bytes_max) {
    return;
  }
  LocalObject* const found = engine_.objects.find(push.object);
  const bool is_wanted = found != nullptr && found->is_wanted();
  if (!is_wanted) engine_.objects.claim(push.object);
  if (found == nullptr) return;
  LocalObject& object = *found;
  const bool is_newer = name_of_bytes(object) < name_of_bytes(push);
  if (is_wanted && (!object.has_bytes() || is_newer)) {
    // It may also hold a range that an earlier grant waits for.
    engine_.folds.end_fold(push.object);  // the whole result is here
    engine_.objects.end_put(push.object, object, "put again by a later attempt");
    object.begin(name_of_bytes(push), push.meta, Keep::kCopy, Finality::kFinal);
    // Its claim acknowledges it.
    engine_.objects.store_small(push.object, object, std::move(payload));
  }
  // Each half of the list goes one way, so that the depth is the logarithm of its length. A node
  // that holds the object already passes it on as well, because the other receivers wait for it.
  LocalObject* const stored = engine_.objects.find(push.object);
  const bool has_it = stored != nullptr && stored->is_complete() &&
                      name_of_bytes(*stored) == name_of_bytes(push) && stored->meta == push.meta;
  if (push.forward.empty() || !has_it) return;
  const std::size_t half = (push.forward.size() + 1) / 2;
  for (const std::size_t first : {std::size_t{0}, half}) {
    const std::size_t last = first == 0 ? half : push.forward.size();
    if (first >= last) continue;
    Push next = push;
    next.forward.assign(push.forward.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                        push.forward.begin() + static_cast<std::ptrdiff_t>(last));
    engine_.outgoing.send(push.forward[first], std::move(next), {}, stored->extent);
  }
}

void Home::handle_push_to(NodeId from, const PushTo& push) {
  if (from != engine_.peers.home_of(push.object)) return;
  LocalObject* const found = engine_.objects.find(push.object);
  const bool able = found != nullptr && found->is_complete() && found->is_final() &&
                    found->incarnation == push.incarnation && !push.receivers.empty() &&
                    found->meta.size_bytes <= engine_.config.inline_bytes_max;
  if (!able) return engine_.objects.claim(push.object);
  Push next{push.object,
            push.incarnation,
            found->target_epoch,
            found->meta,
            {push.receivers.begin() + 1, push.receivers.end()}};
  if (push.receivers[0] == engine_.config.node) return;
  engine_.outgoing.send(push.receivers[0], std::move(next), {}, found->extent);
}

// The payload of a parcel is this node's own copy of the object. If the copy has gone meanwhile,
// the claim that says so is on its way to the home. A retried push then finds another holder, and a
// node that asked for a location has it and pulls.
void Home::send_parcel(Parcel parcel) {
  if (!parcel.with_payload) return engine_.outgoing.send(parcel.to, std::move(parcel.body));
  const auto* located = std::get_if<Located>(&parcel.body);
  const ObjectId& id = located != nullptr ? located->object : std::get<Push>(parcel.body).object;
  LocalObject* const found = engine_.objects.find(id);
  const bool is_here = found != nullptr && found->is_complete() &&
                       (located == nullptr || found->incarnation == located->incarnation);
  if (!is_here && located == nullptr) return;
  if (!is_here) return engine_.outgoing.send(parcel.to, std::move(parcel.body));
  engine_.objects.note_use(id);
  engine_.outgoing.send(parcel.to, std::move(parcel.body), {}, found->extent);
}

bool Home::settle_one() {
  if (auto parcel = engine_.directory.poll_parcel()) {
    send_parcel(std::move(*parcel));
  } else if (auto state = engine_.reduces.poll_state()) {
    engine_.calls.tell_state(*state);
  } else if (auto share = engine_.reduces.poll_parcel()) {
    send_parcel(std::move(*share));
  } else if (const auto locate = engine_.reduces.poll_locate()) {
    engine_.calls.ask(*locate);
  } else if (auto target = engine_.reduces.poll_cancelled()) {
    engine_.keeping.delete_everywhere(*target, Incarnation{1});
  } else {
    return false;
  }
  return true;
}

}  // namespace hoplite
