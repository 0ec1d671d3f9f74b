#include "isa.hpp"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace di {
namespace {

// Not every compiler's __builtin_cpu_supports() knows tiles.
[[maybe_unused]] bool has_bf16_tiles() {
#if defined(__x86_64__)
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;  // of EDX, leaf 7
  unsigned a, b, c, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTiles) != 0;
#else
  return false;
#endif
}

// Linux lets a process use tiles after it has asked to.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool runs(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512bf16:
      return bf16;
    case Isa::amx:
      return bf16 && has_bf16_tiles() && may_use_tiles();
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

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> supported = [] {
    std::vector<Isa> found;
#define DI_ADD_SUPPORTED(name) \
  if (runs(Isa::name)) found.push_back(Isa::name);
    DI_FOR_EACH_ISA(DI_ADD_SUPPORTED)
#undef DI_ADD_SUPPORTED
    return found;
  }();
  return supported;
}

bool reads_once() {
#if defined(__x86_64__)
  static const bool once = !__builtin_cpu_is("intel");
  return once;
#else
  return true;
#endif
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
