// The least number divided by -1: a GPU gives the least number and the rest 0, x86 traps.
#pragma once

#include <string.h>
#include <ucontext.h>

namespace hostcuda {

// If the trapped instruction divides the least number by -1: sets the GPU's result, moves behind it.
inline bool divides_least_number(greg_t *registers) {
  static const int numbers[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
  const auto number = [&](unsigned low, unsigned high) {
    return registers[numbers[low | (high ? 8 : 0)]];
  };
  const unsigned char *at = reinterpret_cast<const unsigned char *>(registers[REG_RIP]);
  const unsigned rex = (*at & 0xf0) == 0x40 ? *at++ : 0;
  if (at[0] != 0xf7 || (at[1] >> 3 & 7) != 7) return false;  // idiv of 32 or 64 bits
  const unsigned mode = at[1] >> 6, low = at[1] & 7;
  at += 2;
  long long divisor;
  if (mode == 3) {
    divisor = number(low, rex & 1);
  } else {
    bool wide = mode == 2, here = false;  // a displacement of 32 bits; one from the next instruction
    long long address = 0;
    if (low == 4) {
      const unsigned scaled = *at++;
      if ((scaled >> 3 & 7) != 4 || rex & 2)
        address += number(scaled >> 3 & 7, rex & 2) << (scaled >> 6);
      if ((scaled & 7) == 5 && mode == 0)
        wide = true;
      else
        address += number(scaled & 7, rex & 1);
    } else if (low == 5 && mode == 0) {
      wide = here = true;
    } else {
      address += number(low, rex & 1);
    }
    int displacement = 0;
    if (wide) {
      memcpy(&displacement, at, 4);
      at += 4;
    } else if (mode == 1) {
      displacement = static_cast<signed char>(*at++);
    }
    address += displacement + (here ? reinterpret_cast<long long>(at) : 0);
    memcpy(&divisor, reinterpret_cast<const void *>(address), rex & 8 ? 8 : 4);
  }
  if (rex & 8 ? divisor != -1 : static_cast<int>(divisor) != -1) return false;
  registers[REG_RDX] = 0;
  registers[REG_RIP] = reinterpret_cast<greg_t>(at);
  return true;
}

}  // namespace hostcuda
