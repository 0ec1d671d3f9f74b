// Selection of the compressed entries that a row attends to (attention specification, 8 and 9).
#pragma once

#include "plan/projection.hpp"
#include "plan/step.hpp"

namespace di::plan {

enum class Candidates { none, source, consumer };  // a source chooses blocks, a consumer scores only those

struct IndexerPlan {
  int64_t ratio = 0, heads = 0, dim = 0;
  int64_t topk = 0, block_size = 0, top_blocks = 0;
  int64_t key_layer = 0;  // whose index keys are scored
  Candidates candidates = Candidates::none;
  Projection wq_b;
  Weight weights_proj{};
  float scale = 0;

  // Selects for rows x [rows, dim] with query latents q_latent [rows, q_rank].
  template <class T>
  void run(const T* x, const Input<T>& q_latent, const RopeTable& rope, Step<T>& step) const;

 private:
  // What can be selected in a step whose rows see at most `width` entries: no more than there is.
  struct Limits {
    int64_t topk, block_size, top_blocks;
  };
  Limits limits(const StepRows& rows) const;
  template <class T>
  void queries(const T* x, const Input<T>& q_latent, const RopeTable& rope, Step<T>& step, T* q,
               T* weights) const;
};

// Stands in for an indexer: the latest `topk` entries that a row may see, whatever they hold.
void select_recent(const EntryRows& entries, int64_t topk, Selection& selected);

}  // namespace di::plan
