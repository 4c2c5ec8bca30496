// SPDX-License-Identifier: Apache-2.0
#include "sim/model/liar.h"

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "wire/link_fields.h"
#include "wire/local/local_fields.h"

namespace hoplite::sim {
namespace {

// Walks the fields of a frame like wire::Reader, and draws each.
class Filler {
 public:
  template <typename T>
  using Ref = T&;
  Filler(const Liar::Pools& pools, const Liar::Draw& draw) : pools_(pools), draw_(draw) {}

  [[nodiscard]] bool is_whole() const { return ok_; }  // a Reader would take it

  template <wire::Integer T>
  void number(T& value) {
    const std::uint8_t kind = draw_();
    if (kind < 244) {
      constexpr std::array<std::uint8_t, 8> kLikely{1, 1, 1, 1, 2, 2, 3, 0};
      value = static_cast<T>(kLikely[kind % kLikely.size()]);
    } else if (kind < 252) {
      value = static_cast<T>(draw_());
    } else {
      constexpr T kMost = std::numeric_limits<T>::max();
      const std::array<T, 4> edges{kMost, static_cast<T>(kMost - 1), static_cast<T>(kMost / 2),
                                   static_cast<T>(8192)};
      value = edges[kind % edges.size()];
    }
  }
  void flag(bool& value) { value = draw_() % 2 == 1; }
  template <typename E>
  void enumeration(E& value, int count) {
    value = static_cast<E>(draw_() % count);
  }
  void array(std::array<std::uint8_t, kObjectIdBytes>& value) {
    value = one_of(pools_.objects).bytes;
  }
  void text(std::string& value, std::size_t) { value = draw_() % 2 == 0 ? "" : "a lie"; }
  void layout(Layout& value) { value = draw_() % 2 == 0 ? "" : "a lie"; }
  template <typename T>
  std::vector<T>& counted(std::vector<T>& values, std::size_t limit, std::size_t) {
    values.resize(std::min<std::size_t>(limit, draw_() % 4U));
    return values;
  }
  void require(bool holds) { ok_ = ok_ && holds; }

  void meta(ObjectMeta& value) { value = one_of(pools_.metas); }

 private:
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[draw_() % values.size()];
  }
  const Liar::Pools& pools_;
  const Liar::Draw& draw_;
  bool ok_ = true;
};

// Takes a meta from the pool, because random sizes are nearly never a valid meta.
void fields(Filler& filler, ObjectMeta& meta) { filler.meta(meta); }

template <std::size_t N = 0, typename Variant>
void emplace_at(Variant& variant, std::size_t index) {
  if constexpr (N < std::variant_size_v<Variant>) {
    if (index == N) {
      variant.template emplace<N>();
    } else {
      emplace_at<N + 1>(variant, index);
    }
  }
}

}  // namespace

std::optional<MessageIn> Liar::message(NodeId from, Epoch epoch) {
  MessageIn said{from, Message{epoch, {}, {}, {}}, {}};
  emplace_at(said.message.body, draw_() % std::variant_size_v<PeerMessage>);
  said.message.transfer = pools_.transfers[draw_() % pools_.transfers.size()];
  Filler filler(pools_, draw_);
  std::visit(
      [&](auto& body) {
        wire::fields(filler, body);
        if constexpr (requires { body.meta; }) {
          const bool is_small = body.meta.size_bytes <= kInlineBytesMax;
          if (is_small && draw_() % 2 == 0) said.payload.resize(body.meta.size_bytes);
        }
      },
      said.message.body);
  if (!filler.is_whole()) return std::nullopt;
  return said;
}

std::optional<CommandBody> Liar::command() {
  CommandBody said;
  emplace_at(said, draw_() % std::variant_size_v<CommandBody>);
  Filler filler(pools_, draw_);
  std::visit(
      [&](auto& body) {
        if constexpr (wire::is_inside<std::remove_cvref_t<decltype(body)>>) {
          filler.require(false);
        } else {
          wire::fields(filler, body);
        }
        if constexpr (requires { body.payload; }) {
          const bool is_small = body.meta.size_bytes <= kInlineBytesMax;
          if (is_small && draw_() % 4 != 0) body.payload.resize(body.meta.size_bytes);
        }
      },
      said);
  if (!filler.is_whole()) return std::nullopt;
  return said;
}

}  // namespace hoplite::sim
