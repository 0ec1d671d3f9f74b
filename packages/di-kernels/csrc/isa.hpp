// The instruction sets that hot loops are compiled for, and the one in use. Every loop gives the same bits on
// each of them but on amx, whose dots of bfloat16 numbers are added up in an order of their own
// (docs/architecture.md, "Instruction sets").
#pragma once

#include <string_view>
#include <vector>

#if defined(__x86_64__)
#define DI_FOR_EACH_SIMD_ISA(X) X(portable) X(avx2) X(avx512) X(avx512bf16)
#define DI_FOR_EACH_ISA(X) DI_FOR_EACH_SIMD_ISA(X) X(amx)
#define DI_AMX_TABLE       \
  namespace amx {          \
  using avx512bf16::table; \
  }
#else
#define DI_FOR_EACH_SIMD_ISA(X) X(portable)
#define DI_FOR_EACH_ISA(X) X(portable)
#define DI_AMX_TABLE
#endif

namespace di {

#define DI_ISA_ENUMERATOR(isa) isa,
enum class Isa { DI_FOR_EACH_ISA(DI_ISA_ENUMERATOR) };
#undef DI_ISA_ENUMERATOR

std::string_view isa_name(Isa isa);
const std::vector<Isa>& supported_isas();  // of this machine, the best one last
Isa active_isa();                          // default: the best one
bool use_isa(std::string_view name);       // in this process from now on; false: this machine cannot run it

// Whether this processor reads memory fastest when lines are asked for as read once. Intel's fetch such lines
// past the second cache, as few at a time as the first can wait for: half the rate of a plain read.
bool reads_once();

}  // namespace di

// A family of loops is a struct `Table` of function pointers in a namespace of its own
// (csrc/simd/<family>.hpp); csrc/simd/<family>.cpp defines it and is compiled once for each instruction set.
// DI_SIMD_FAMILY declares the tables and active(), which returns the one of the instruction set in use. Where
// csrc/amx has no loops of a family, amx takes those of avx512bf16; DI_AMX_FAMILY is for those that it has.
#define DI_DECLARE_TABLE(isa) \
  namespace isa {             \
  extern const Table table;   \
  }
#define DI_TABLE_OF(isa) \
  case ::di::Isa::isa:   \
    return isa::table;
#define DI_ACTIVE_TABLE                                          \
  inline const Table& active() {                                 \
    switch (::di::active_isa()) { DI_FOR_EACH_ISA(DI_TABLE_OF) } \
    return portable::table;                                      \
  }
#define DI_SIMD_FAMILY                   \
  DI_FOR_EACH_SIMD_ISA(DI_DECLARE_TABLE) \
  DI_AMX_TABLE                           \
  DI_ACTIVE_TABLE
#define DI_AMX_FAMILY               \
  DI_FOR_EACH_ISA(DI_DECLARE_TABLE) \
  DI_ACTIVE_TABLE
