#include "scheduler/commit.hpp"

#include <algorithm>

namespace di::scheduler {

namespace {

bool contains(const std::vector<Token>& ids, Token token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

}  // namespace

Committed Committer::commit(Sequence& sequence, std::span<const Token> tokens, std::int32_t most) const {
  Committed result;
  const bool negative = std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token < 0; });
  if (tokens.empty() || negative || tokens.size() > static_cast<std::size_t>(most)) {
    result.finish = FinishReason::kError;
    return result;
  }
  for (const Token token : tokens) {
    sequence.append(token);
    ++result.num_tokens;
    result.finish = check_stop(sequence);
    if (result.finish != FinishReason::kNone) break;
  }
  return result;
}

FinishReason Committer::check_stop(const Sequence& sequence) const {
  const Limits& limits = sequence.limits();
  const Token token = sequence.tokens().back();
  if (sequence.output_length() > limits.min_tokens) {
    if (!limits.ignore_eos && contains(limits.eos_token_ids, token)) return FinishReason::kStop;
    if (contains(limits.stop_token_ids, token)) return FinishReason::kStopToken;
  }
  if (sequence.output_length() >= limits.max_tokens || sequence.length() >= length_limit_) {
    return FinishReason::kLength;
  }
  return FinishReason::kNone;
}

}  // namespace di::scheduler
