#include "scheduler/admission.hpp"

#include <cmath>
#include <string>

#include "scheduler/errors.hpp"

namespace di::scheduler {

namespace {

using std::to_string;

void check_tokens(const Config& config, std::span<const Token> tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (tokens.empty()) throw AdmissionError("empty_prompt", "prompt must have at least 1 token, got 0");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0) continue;
    throw AdmissionError(
        "invalid_token",
        "prompt[" + to_string(i) + "] must be a token id of at least 0, got " + to_string(tokens[i]));
  }
  // One token must be left to generate.
  if (length >= config.max_model_len) {
    throw AdmissionError("prompt_too_long", "prompt has " + to_string(length) + " tokens, max_model_len " +
                                                to_string(config.max_model_len) + " allows at most " +
                                                to_string(config.max_model_len - 1));
  }
  if (length >= config.pool_tokens()) {
    throw AdmissionError("pool_too_small", "prompt has " + to_string(length) + " tokens, the pool of " +
                                               to_string(config.num_blocks - 1) + " blocks of " +
                                               to_string(config.block_size) + " tokens allows at most " +
                                               to_string(config.pool_tokens() - 1));
  }
}

void check_images(const Config& config, std::int64_t length, const std::vector<ImageSpan>& images) {
  std::int64_t free_from = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::int64_t first = images[i].first, count = images[i].count;
    const std::string name =
        "images[" + to_string(i) + "] = (" + to_string(first) + ", " + to_string(count) + ")";
    if (first < free_from || count < 1 || first + count > length) {
      throw AdmissionError("invalid_images", name + " must be a first position of at least " +
                                                 to_string(free_from) +
                                                 " and a count of at least 1, inside the prompt of " +
                                                 to_string(length) + " tokens");
    }
    if (count > config.largest_image()) {
      throw AdmissionError("image_too_large", name + " is never cut, so that it may have at most " +
                                                  to_string(config.largest_image()) +
                                                  " tokens in steps of max_num_batched_tokens " +
                                                  to_string(config.max_num_batched_tokens));
    }
    free_from = first + count;
  }
}

void check_checkpoints(std::int64_t length, const Options& options) {
  std::int32_t last = 0;
  for (std::size_t i = 0; i < options.checkpoints.size(); ++i) {
    const std::int32_t position = options.checkpoints[i];
    const std::string name = "checkpoints[" + to_string(i) + "]";
    if (position <= last || position > length) {
      throw AdmissionError("invalid_checkpoints", name + " must be " + to_string(last + 1) + " to " +
                                                      to_string(length) + ", got " + to_string(position));
    }
    for (const ImageSpan& image : options.images) {
      if (position <= image.first || position >= image.end()) continue;
      throw AdmissionError("invalid_checkpoints", name + " = " + to_string(position) +
                                                      " lies inside the image at " + to_string(image.first));
    }
    last = position;
  }
}

}  // namespace

void check_admission(const Config& config, SeqId id, std::span<const Token> tokens, double arrival,
                     const Options& options) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (id < 0) throw AdmissionError("invalid_id", "seq_id must be at least 0, got " + to_string(id));
  if (!std::isfinite(arrival)) {
    throw AdmissionError("invalid_arrival", "arrival must be a finite time, got " + to_string(arrival));
  }
  check_tokens(config, tokens);
  check_images(config, length, options.images);
  check_checkpoints(length, options);
  if (options.params.size() != static_cast<std::size_t>(config.num_params)) {
    throw AdmissionError("invalid_params", "params must have num_params = " + to_string(config.num_params) +
                                               " values, got " + to_string(options.params.size()));
  }
}

}  // namespace di::scheduler
