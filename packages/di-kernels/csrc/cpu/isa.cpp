#include "isa.hpp"

#include <atomic>

namespace di {
namespace {

bool runs(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return isa == Isa::portable;
}

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa{supported_isas().back()};
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
#define DI_ISA_NAME(name) \
  case Isa::name:         \
    return #name;
  switch (isa) { DI_FOR_EACH_ISA(DI_ISA_NAME) }
#undef DI_ISA_NAME
  return "portable";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
#define DI_ADD_SUPPORTED(name) \
  if (runs(Isa::name)) found.push_back(Isa::name);
  DI_FOR_EACH_ISA(DI_ADD_SUPPORTED)
#undef DI_ADD_SUPPORTED
  return found;
}

Isa active_isa() { return active().load(std::memory_order_relaxed); }

bool use_isa(std::string_view name) {
  for (const Isa isa : supported_isas()) {
    if (isa_name(isa) != name) continue;
    active().store(isa, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace di
