#include "scheduler/chunk.hpp"

#include <algorithm>

namespace di::scheduler {

namespace {

// The image that positions `end - 1` and `end` both belong to, else null.
const ImageSpan* image_across(const Sequence& sequence, std::int32_t end) {
  const auto& images = sequence.options().images;
  auto after =
      std::upper_bound(images.begin(), images.end(), end,
                       [](std::int32_t position, const ImageSpan& image) { return position <= image.first; });
  if (after == images.begin()) return nullptr;
  const ImageSpan& image = *--after;
  return end < image.end() ? &image : nullptr;
}

std::int32_t to_checkpoint(const Sequence& sequence, std::int32_t start, std::int32_t rows) {
  const auto& checkpoints = sequence.options().checkpoints;
  const auto next = std::upper_bound(checkpoints.begin(), checkpoints.end(), start);
  return next == checkpoints.end() ? rows : std::min(rows, *next - start);
}

}  // namespace

std::int32_t chunk_rows(const Config& config, const Sequence& sequence, std::int32_t budget,
                        std::int64_t room) {
  const std::int32_t start = sequence.num_planned(), missing = sequence.missing();
  const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(config.max_chunk_tokens, room));
  std::int32_t rows = std::min(missing, most);
  const bool fits = config.padded(rows) <= budget;
  if (!fits) rows = std::max(budget, 0);
  if (!fits || rows < missing) rows -= rows % config.chunk_align;
  if (rows <= 0) return 0;
  rows = to_checkpoint(sequence, start, rows);
  const ImageSpan* image = image_across(sequence, start + rows);
  if (image == nullptr) return rows;
  if (image->first > start) return image->first - start;
  const std::int32_t whole = image->end() - start;
  return whole <= most && config.padded(whole) <= budget ? whole : 0;
}

std::int32_t least_rows(const Config& config, const Sequence& sequence, std::int32_t rows) {
  const std::int32_t start = sequence.num_planned();
  const ImageSpan* image = image_across(sequence, start + 1);
  const bool at_image = image != nullptr && image->first <= start;
  const std::int32_t whole = at_image ? image->end() - start : 1;
  return std::min(rows, std::max(whole, std::min(config.chunk_align, sequence.missing())));
}

}  // namespace di::scheduler
