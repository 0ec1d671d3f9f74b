#include "plan/step_rows.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/range.hpp"

namespace di::plan {
namespace {

[[noreturn]] void refuse(const std::string& name, int64_t value, const std::string& allowed) {
  throw std::invalid_argument(name + " is " + std::to_string(value) + "; allowed: " + allowed);
}

void require_size(const char* name, size_t actual, int64_t expected) {
  if (static_cast<int64_t>(actual) != expected) {
    refuse(std::string("size of ") + name, static_cast<int64_t>(actual), std::to_string(expected));
  }
}

void require_none_negative(const char* name, std::span<const int32_t> values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](int32_t v) { return v < 0; });
  if (bad != values.end()) refuse(name, *bad, "0 or more");
}

void check(const StepInput& in, const CacheSizes& sizes) {
  const auto sequences = static_cast<int64_t>(in.q_start.size());
  require_size("q_len", in.q_len.size(), sequences);
  require_size("slots", in.slots.size(), sequences);
  require_size("block_table", in.block_table.size(), sequences * in.table_width);
  require_size("context", in.context.size(), sequences * in.lookback);
  require_none_negative("q_start", in.q_start);
  require_none_negative("q_len", in.q_len);
  require_none_negative("slots", in.slots);
  require_none_negative("block_table", in.block_table);
  const int64_t capacity = in.table_width * sizes.block_size;
  int64_t rows = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t end = int64_t{in.q_start[s]} + in.q_len[s];
    if (end > capacity) {
      refuse("q_start + q_len", end,
             "at most " + std::to_string(capacity) + ", " + std::to_string(in.table_width) + " blocks of " +
                 std::to_string(sizes.block_size) + " tokens");
    }
    rows += in.q_len[s];
    if (in.q_len[s] == 0) continue;
    require_range("slot", s, in.slots[s], 0, sizes.slots);
    const int64_t used = (end + sizes.block_size - 1) / sizes.block_size;
    const auto blocks =
        in.block_table.subspan(static_cast<size_t>(s * in.table_width), static_cast<size_t>(used));
    for (const int32_t block : blocks) require_range("block", s, block, 0, sizes.blocks);
  }
  require_size("tokens", in.tokens.size(), rows);
}

template <class... Vectors>
void clear(Vectors&... vectors) {
  (vectors.clear(), ...);
}

}  // namespace

void StepRows::build(const StepInput& in, const CacheSizes& sizes) {
  check(in, sizes);
  rows = static_cast<int64_t>(in.tokens.size());
  sequences = static_cast<int64_t>(in.q_start.size());
  table_width = in.table_width;
  lookback = in.lookback;
  end = 0;
  tokens = in.tokens.data();
  block_table = in.block_table.data();
  clear(positions, sequence, last_tokens, slot, split, fresh_start, begin, window_end);
  for (RingStores* store : {&window_store, &compress_store}) clear(store->row, store->slot, store->cell);
  for (EntryRows* e : {&singles, &pairs}) {
    clear(e->visible, e->row, e->block, e->entry, e->rope_position);
    e->most_visible = 0;
  }
  clear(partners.first, partners.slot, partners.cell);
  int64_t first_row = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    add_sequence(in, sizes, s, first_row);
    first_row += in.q_len[s];
  }
}

void StepRows::add_sequence(const StepInput& in, const CacheSizes& sizes, int64_t s, int64_t first_row) {
  const int32_t start = in.q_start[s], state = in.slots[s];
  const int64_t length = in.q_len[s], stop = start + length;
  const int32_t* table = block_table + s * table_width;
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  const auto store = [&](RingStores& ring, int64_t cells, int64_t row, int64_t position) {
    if (position < stop - cells) return;  // a later row of the step takes its cell
    ring.row.push_back(narrow(row));
    ring.slot.push_back(state);
    ring.cell.push_back(narrow(position % cells));
  };
  const auto complete = [&](EntryRows& e, int64_t ratio, int64_t row, int64_t position) {
    e.visible.push_back(narrow((position + 1) / ratio));
    e.most_visible = std::max(e.most_visible, (position + 1) / ratio);
    if ((position + 1) % ratio != 0) return false;
    const int64_t number = position / ratio, per_block = sizes.block_size / ratio;
    e.row.push_back(narrow(row));
    e.block.push_back(table[number / per_block]);
    e.entry.push_back(narrow(number % per_block));
    e.rope_position.push_back(narrow(number * ratio));
    return true;
  };
  for (int64_t i = 0; i < length; ++i) {
    const int64_t row = first_row + i, position = start + i;
    positions.push_back(narrow(position));
    sequence.push_back(narrow(s));
    for (int64_t back = 0; back <= lookback; ++back) {
      last_tokens.push_back(back <= i ? tokens[row - back] : in.context[s * lookback + back - 1 - i]);
    }
    slot.push_back(state);
    split.push_back(start);
    fresh_start.push_back(narrow(first_row));
    begin.push_back(narrow(std::max<int64_t>(position - (sizes.window - 1), 0)));
    window_end.push_back(narrow(position + 1));
    store(window_store, sizes.window_cells, row, position);
    store(compress_store, sizes.compress_cells, row, position);
    complete(singles, 1, row, position);
    if (sizes.block_size % 2 != 0 || !complete(pairs, 2, row, position)) continue;  // no layer has pairs then
    const bool in_step = i > 0;
    partners.first.push_back(in_step ? narrow(row - 1) : -1);
    partners.slot.push_back(state);
    partners.cell.push_back(in_step ? -1 : narrow((position - 1) % sizes.compress_cells));
  }
  if (length > 0) end = std::max(end, stop);
}

}  // namespace di::plan
