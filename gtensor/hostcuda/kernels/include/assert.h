// fibers/device.h has defined CUDA's assert; the C library's would end the process.
