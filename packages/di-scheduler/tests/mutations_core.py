"""One-line defects of the core, one or more for each property, and the test that must catch each."""

from .mutation import Mutation

_PLANNER = "csrc/scheduler/planner.cpp"
_SCHEDULER = "csrc/scheduler/scheduler.cpp"
_SCHEDULER_HPP = "csrc/scheduler/scheduler.hpp"
_LIFECYCLE = "csrc/scheduler/lifecycle.cpp"
_CACHE = "csrc/scheduler/sequence_cache.cpp"
_POOL = "csrc/scheduler/block_pool.cpp"
_CHUNK = "csrc/scheduler/chunk.cpp"
_DRAFTS = "csrc/scheduler/draft_planner.cpp"
_COMMIT = "csrc/scheduler/commit.cpp"
_RESOLVE = "csrc/scheduler/resolve.cpp"
_WAITING = "csrc/scheduler/waiting_queue.cpp"
_PLAN = "csrc/scheduler/step_plan.cpp"


def _property(name: str) -> str:
    return f"tests/test_properties.py::test_property[{name}]"


MODEL = "tests/test_against_model.py::test_long_histories_under_pressure[MIXED-NORMAL]"
_POOL_TESTS = "tests/test_block_pool.py"
_ALIKE = "tests/test_transparency.py::test_outputs_do_not_depend_on_the_schedule"
_ASYNC = "tests/test_transparency.py::test_asynchronous_steps_change_nothing"
_FORKS = "tests/test_transparency.py::test_forks_give_what_their_prompt_gives"

MUTATIONS = [
    Mutation(1, _CACHE, "  blocks_.free(sequence.block_table);", "", _property("1 conservation")),
    Mutation(
        1,
        _CACHE,
        "if (copy.from_block != 0) blocks_.free({&copy.from_block, 1});",
        "",
        _property("1 conservation"),
    ),
    Mutation(2, _CACHE, "  blocks_.pin(shared);", "", _property("2 reference counts")),
    Mutation(
        3, _POOL, "BlockId id = 1; id < num_blocks; ++id", "BlockId id = num_blocks; id-- > 0;", _POOL_TESTS
    ),
    Mutation(3, _CACHE, "open(*child);", "", _property("3 index 0")),
    Mutation(4, _POOL, "  nodes_[nodes_[id].next].prev = 0;", "", _POOL_TESTS),
    Mutation(
        5,
        _POOL,
        "if (--nodes_[ids[i]].ref_count == 0) push_back(ids[i]);",
        "if (--nodes_[ids[ids.size() - 1 - i]].ref_count == 0) push_back(ids[ids.size() - 1 - i]);",
        _POOL_TESTS,
    ),
    Mutation(
        6,
        _POOL,
        "  for (const BlockId id : ids) ++nodes_[id].ref_count;\n  if (excess",
        "  if (excess",
        _POOL_TESTS,
    ),
    Mutation(
        6, _POOL, "if (id < 1 || id >= num_blocks()) {", "if (id < 0 || id >= num_blocks()) {", _POOL_TESTS
    ),
    Mutation(7, _POOL, "if (count >= num_blocks())", "if (count > num_blocks())", _POOL_TESTS),
    Mutation(
        8,
        _CACHE,
        "CacheCopy copy{child, 0, 0, parent.slot, child->slot};",
        "child->slot = parent.slot; CacheCopy copy{child, 0, 0, parent.slot, child->slot};",
        _property("8, 9 slots"),
    ),
    Mutation(
        9,
        _PLANNER,
        "return slots < config_.max_num_seqs &&",
        "return slots <= config_.max_num_seqs &&",
        _property("8, 9 slots"),
    ),
    Mutation(
        10,
        _LIFECYCLE,
        "  sequence->restart();\n  waiting_.insert(sequence);",
        "  sequence->restart();",
        _property("10 exclusivity"),
    ),
    Mutation(
        11,
        _PLANNER,
        "const bool wanted = kind == StepKind::kAny || decode ==",
        "const bool wanted = decode || decode ==",
        _property("11 homogeneity"),
    ),
    Mutation(12, _PLANNER, "- step.num_rows - padding_;", "- step.num_rows;", _property("12 budgets")),
    Mutation(
        12,
        _PLANNER,
        "return prefill_ends_ > 0 && prefill_ends_ + end",
        "return prefill_ends_ > 0 && end",
        _property("12 budgets"),
    ),
    Mutation(
        13,
        _SCHEDULER,
        "if (!piece.decode) sequence->set_computed(piece.q_start + piece.q_len);",
        "",
        _property("13 chunk coverage"),
    ),
    Mutation(14, _CHUNK, "if (image == nullptr) return rows;", "return rows;", _property("14 images")),
    Mutation(
        14,
        _CHUNK,
        "return end < image.end() ? &image : nullptr;",
        "return end < image.end() - 1 ? &image : nullptr;",
        _property("14 images"),
    ),
    Mutation(15, _CHUNK, "rows = to_checkpoint(sequence, start, rows);", "", _property("15 checkpoints")),
    Mutation(
        16,
        _CHUNK,
        "if (!fits || rows < missing) rows -= rows % config.chunk_align;",
        "if (!fits) rows -= rows % config.chunk_align;",
        _property("16 alignment"),
    ),
    Mutation(
        17,
        _WAITING,
        "if (below && priority >= *below) break;\n    SequencePtr best;",
        "if (below && priority >= *below) break;\n"
        "    if (users.size() > 1 && classes_.size() > 1) continue;\n    SequencePtr best;",
        _property("17 FIFO"),
    ),
    Mutation(17, _WAITING, "if (sequence->overtaken >= max_overtakes_) break;", "", MODEL),
    Mutation(18, _PLANNER, "cache_.cover(*sequence, base + granted);", "", _property("18, 19 tables")),
    Mutation(
        18,
        _PLANNER,
        "sequence->length() + std::int64_t{pending}, config_.length_limit());",
        "sequence->length() + std::int64_t{pending > 0}, config_.length_limit());",
        _ASYNC,
    ),
    Mutation(
        19,
        _CACHE,
        "config_.blocks_for(end) - static_cast",
        "config_.blocks_for(end + 1) - static_cast",
        _property("18, 19 tables"),
    ),
    Mutation(20, _PLANNER, "i = std::max<std::size_t>(from, 1);", "i = from;", _property("20 preemption")),
    Mutation(
        20,
        _PLANNER,
        "if (covered >= least) return covered;",
        "if (covered > least) return covered;",
        _property("20 preemption"),
    ),
    Mutation(
        20,
        _PLANNER,
        "std::max<std::int64_t>(0, cache_.blocks().num_free() - behind);",
        "cache_.blocks().num_free();",
        MODEL,
    ),
    Mutation(
        21, _SCHEDULER, "parent.num_written() - computed <=", "parent.num_computed() - computed <=", _FORKS
    ),
    Mutation(
        21,
        _LIFECYCLE,
        "  sequence->restart();",
        "  sequence->restart();\n  sequence->set_computed(1);",
        _ALIKE,
    ),
    Mutation(
        22,
        _SCHEDULER,
        "lifecycle_.end(sequence, committed.finish);",
        "lifecycle_.end(sequence, FinishReason::kLength);\n    committed.finish = FinishReason::kLength;",
        _property("22, 23 outputs and stop rules"),
    ),
    Mutation(
        23,
        _COMMIT,
        "if (result.finish != FinishReason::kNone) break;",
        "",
        _property("22, 23 outputs and stop rules"),
    ),
    Mutation(
        23,
        _COMMIT,
        "if (sequence.output_length() > limits.min_tokens) {",
        "if (sequence.output_length() >= limits.min_tokens) {",
        _property("22, 23 outputs and stop rules"),
    ),
    Mutation(
        24,
        _DRAFTS,
        "config_.length_limit() - sequence.length() - pending;",
        "config_.length_limit();",
        "tests/test_commit.py::test_drafts_stop_at_what_may_still_be_generated",
    ),
    Mutation(
        24,
        _RESOLVE,
        "return valid && from_.q_start[i] + count - 1 < from_.length_limit;",
        "return valid;",
        _property("24, 25 resolved plans"),
    ),
    Mutation(
        25,
        _RESOLVE,
        "to_.token_ids.push_back(known.tokens.back());",
        "to_.token_ids.push_back(known.tokens.front());",
        _ASYNC,
    ),
    Mutation(
        26,
        _DRAFTS,
        "pending > 0 ? config_.max_draft_tokens :",
        "pending > 0 ? config_.max_draft_tokens + 1 :",
        _property("26, 28 flights"),
    ),
    Mutation(
        27,
        _SCHEDULER,
        "sequence.set_computed(piece.q_start + committed.num_tokens);",
        "sequence.set_computed(piece.q_start + piece.q_len);",
        _property("27 progress"),
    ),
    Mutation(
        28,
        _SCHEDULER_HPP,
        "return !lifecycle_.live().empty() || !open_plans_.empty();",
        "return !lifecycle_.live().empty();",
        _property("26, 28 flights"),
    ),
    Mutation(  # the total by the rates of the very drafts that it decides about
        30,
        _DRAFTS,
        "append_rates(in_flight ? sequence->rates : sequence->previous_rates, count, older_rates_);",
        "append_rates(sequence->rates, count, older_rates_);",
        MODEL,
    ),
    Mutation(
        36,
        _PLANNER,
        "slots == 0 ? 0 : config_.watermark_blocks;",
        "config_.watermark_blocks;",
        "tests/test_planning.py::test_the_watermark_keeps_blocks_free_of_newcomers_only",
    ),
    Mutation(36, _PLANNER, "shares ? config_.chunk_align : 0", "0", "tests/test_field_reports.py"),
    Mutation(
        36, _PLANNER, "if (victim == sequence) return 0;", "return 0;", _property("36 the oldest moves")
    ),
    Mutation(37, _PLANNER, "slots == 0 ? 0 : config_.watermark_blocks;", "0;", _property("37 watermark")),
    Mutation(
        37,
        _PLANNER,
        "if (covered < least) return;",
        "if (covered < least + config_.watermark_blocks) return;",
        _property("36 the oldest moves"),
    ),
    Mutation(
        38,
        _LIFECYCLE,
        "    release(*sequence);\n  } else if (sequence->marked",
        "  } else if (sequence->marked",
        _property("38, 44 nothing is left"),
    ),
    Mutation(
        39,
        _CACHE,
        "static_cast<std::size_t>(computed / config_.block_size);",
        "static_cast<std::size_t>(config_.blocks_for(computed));",
        _property("39 fork isolation"),
    ),
    Mutation(40, _LIFECYCLE, "return std::exchange(copies_, {});", "return copies_;", _property("40 copies")),
    Mutation(
        40,
        _PLAN,
        "copy_slots.insert(copy_slots.end(), {copy.from_slot, copy.to_slot});",
        "copy_slots.insert(copy_slots.end(), {copy.to_slot, copy.from_slot});",
        _property("40 copies"),
    ),
    Mutation(
        41,
        _SCHEDULER,
        "if (failed) return {0, FinishReason::kError};",
        "static bool spreads = false;\n  spreads = spreads || failed;\n"
        "  if (spreads) return {0, FinishReason::kError};",
        _property("41 failures"),
    ),
    Mutation(
        42,
        _PLAN,
        "  plan->clear();",
        "  static StepPlan shared;\n  shared.clear();\n  return {&shared, [](StepPlan*) {}};",
        _property("42 memory"),
    ),
    Mutation(
        44,
        _LIFECYCLE,
        "if (!sequence->in_flight()) {",
        "if (!sequence->in_step()) {",
        "tests/test_field_reports.py",
    ),
    Mutation(
        44,
        _LIFECYCLE,
        "  } else if (sequence->in_step() && !sequence->block_table.empty()) {",
        "  } else if (!sequence->block_table.empty()) {",
        "tests/test_lifecycle.py",
    ),
    Mutation(
        45,
        _LIFECYCLE,
        "  ++num_preemptions_;",
        "  if (sequence.num_preemptions() == 0) ++num_preemptions_;",
        _property("45 accounting"),
    ),
]
