// rows.h of both types, for one set of instructions: BYTES and TARGET, which end here.
#define REAL float
#define INT int32_t
#define FLOAT 1
#define LANES (BYTES / 4)
#define NAME(word) JOIN(rows, word, _f, BYTES)
#include "rows.h"
#undef REAL
#undef INT
#undef FLOAT
#undef LANES
#undef NAME

#define REAL double
#define INT int64_t
#define FLOAT 0
#define LANES (BYTES / 8)
#define NAME(word) JOIN(rows, word, _d, BYTES)
#include "rows.h"
#undef REAL
#undef INT
#undef FLOAT
#undef LANES
#undef NAME

#undef BYTES
#undef TARGET
