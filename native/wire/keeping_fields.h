// SPDX-License-Identifier: Apache-2.0
// The fields of the frames about the keepers of an object, like directory_fields.h. Used by
// frame.cc and sim/model/liar.cc.
#pragma once

#include "wire/frame.h"
#include "wire/shared_fields.h"

namespace hoplite::wire {

template <typename A>
void fields(A& a, Of<A, Orphan> m) {
  fields(a, m.object);
  id(a, m.upto);
}
template <typename A>
void fields(A& a, Of<A, Adopt> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  fields(a, m.meta);
  id(a, m.owner);
  a.number(m.copies);
  a.require(m.copies <= kCopiesMax);
}
template <typename A>
void fields(A& a, Of<A, Standing> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  a.flag(m.orphaned);
  a.flag(m.elsewhere);
  a.flag(m.copied);
}

}  // namespace hoplite::wire
