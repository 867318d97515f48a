// Formulas of float. Written by tests/formulas_in_c.py.

#include "../../../../kernels/cpu/functions.h"

#define F(x) ((float)(x))
#define exp exp_float
#define exp_raised exp_raised_float
#define madd madd_float
#define tanh tanh_float
#define log log_float
#define log1p log1p_float
#define select select_float
#define maximum maximum_float
#define minimum minimum_float
#define fabs fabsf
#define sqrt sqrtf
#define copysign copysignf
#define floor floorf

KERNEL static void absolute_error_grad_2c32bb27_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *a_at = (const float *)call->arrays[1];
    const float *b_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float a = a_at[i];
        const float b = b_at[i];
        const float t0 = a - b;
        const float result_next = g * (select(t0 > F(0), F(1), select(t0 < F(0), F(-1), t0)) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void acos_grad_7d54ab2e_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = -(g / sqrt((F(1) - x) * (x + F(1))));
        result_at[i] = result_next;
    }
}

KERNEL static void acosh_grad_e690488e_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / (sqrt(x - F(1)) * sqrt(x + F(1)));
        result_at[i] = result_next;
    }
}

KERNEL static void asin_grad_2be5566a_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / sqrt((F(1) - x) * (x + F(1)));
        result_at[i] = result_next;
    }
}

KERNEL static void asinh_grad_a89ac411_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / sqrt(x * x + F(1));
        result_at[i] = result_next;
    }
}

KERNEL static void atan2_grad_x1_ecf7af2e_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x1_at = (const float *)call->arrays[1];
    const float *x2_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x1 = x1_at[i];
        const float x2 = x2_at[i];
        const float t0 = x1 * x1 + x2 * x2;
        const float result_next = g * x2 / select(t0 == F(0), F(1), t0);
        result_at[i] = result_next;
    }
}

KERNEL static void atan2_grad_x2_8a6ea00d_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x1_at = (const float *)call->arrays[1];
    const float *x2_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x1 = x1_at[i];
        const float x2 = x2_at[i];
        const float t0 = x1 * x1 + x2 * x2;
        const float result_next = -(g * x1) / select(t0 == F(0), F(1), t0);
        result_at[i] = result_next;
    }
}

KERNEL static void atan_grad_5380934b_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / (x * x + F(1));
        result_at[i] = result_next;
    }
}

KERNEL static void atanh_grad_790be480_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / ((F(1) - x) * (x + F(1)));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_85a229ca_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    const float *weight_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float weight = weight_at[i];
        const float result_next = ((t - F(1)) * maximum(log1p(-x), F(-100)) - t * maximum(log(x), F(-100))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_17aea40a_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = (t - F(1)) * maximum(log1p(-x), F(-100)) - t * maximum(log(x), F(-100));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_27361c80_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    const float *weight_at = (const float *)call->arrays[3];
    float *result_at = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float weight = weight_at[i];
        const float result_next = g * ((x - t) * F(s0) / maximum(x * (F(1) - x), F(1e-12))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_dc63dd16_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = g * ((x - t) * F(s0) / maximum(x * (F(1) - x), F(1e-12)));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_target_5209d21c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *weight_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float weight = weight_at[i];
        const float result_next = g * ((maximum(log1p(-x), F(-100)) - maximum(log(x), F(-100))) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_target_4a45a150_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g * ((maximum(log1p(-x), F(-100)) - maximum(log(x), F(-100))) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_014b1feb_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    const float *weight_at = (const float *)call->arrays[2];
    const float *positive_at = (const float *)call->arrays[3];
    float *result_at = (float *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float weight = weight_at[i];
        const float positive = positive_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = ((F(1) - t) * x + (t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986)) - minimum(x, F(0))) * ((positive - F(1)) * t + F(1))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_41724525_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = (F(1) - t) * x + (t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986)) - minimum(x, F(0)));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_87951dd1_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    const float *weight_at = (const float *)call->arrays[3];
    const float *positive_at = (const float *)call->arrays[4];
    float *result_at = (float *)call->arrays[5];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float weight = weight_at[i];
        const float positive = positive_at[i];
        const float t0 = positive * t;
        const float result_next = g * (((t0 + F(1) - t) / (F(1) + exp_raised(-x)) - t0) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_0df10b6c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = g * ((F(1) / (F(1) + exp_raised(-x)) - t) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_positive_5565ccb0_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    const float *weight_at = (const float *)call->arrays[3];
    float *result_at = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float weight = weight_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = g * (t * F(s0) * (t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986)) - minimum(x, F(0)))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_positive_c1652aa9_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = g * (t * F(s0) * (t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986)) - minimum(x, F(0))));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_target_003f9eab_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *weight_at = (const float *)call->arrays[2];
    const float *positive_at = (const float *)call->arrays[3];
    float *result_at = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float weight = weight_at[i];
        const float positive = positive_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = g * (((positive - F(1)) * (t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986)) - minimum(x, F(0))) - x) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void copysign_grad_681d7994_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x1_at = (const float *)call->arrays[1];
    const float *x2_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x1 = x1_at[i];
        const float x2 = x2_at[i];
        const float result_next = g * (select(x1 > F(0), F(1), select(x1 < F(0), F(-1), x1)) * copysign(F(1), x2));
        result_at[i] = result_next;
    }
}

KERNEL static void divide_grad_bb9ae3f8_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x2_at = (const float *)call->arrays[1];
    const float *y_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x2 = x2_at[i];
        const float y = y_at[i];
        const float result_next = -(g * y / x2);
        result_at[i] = result_next;
    }
}

KERNEL static void elu_b474fc48_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = tanh(minimum(x, F(0)) * F(0.5));
        const float result_next = maximum(x, F(0)) + t0 * F(2) / (F(1) - t0) * F(s0);
        result_at[i] = result_next;
    }
}

KERNEL static void elu_grad_8742f740_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *y_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float y = y_at[i];
        const float result_next = select(y > F(0), g, g * (y + F(s0)));
        result_at[i] = result_next;
    }
}

KERNEL static void elu_of_half_b474fc48_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = tanh(minimum(x, F(0)) * F(0.5));
        const float result_next = maximum(x, F(0)) + t0 * F(2) / (F(1) - t0) * F(s0);
        result_at[i] = result_next;
    }
}

KERNEL static void elu_of_half_grad_f578497c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(x > F(0), g, g * (exp(minimum(x, F(0))) * F(s0)));
        result_at[i] = result_next;
    }
}

KERNEL static void erf_509c16b7_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = minimum(x * x, F(16));
        const float result_next = tanh(madd(madd(madd(madd(madd(madd(madd(t0, F(5.421617099774009e-09), F(2.7575719685396113e-08)), t0, F(-4.794601732465962e-06)), t0, F(8.45965684426504e-05)), t0, F(-0.0006148382080810998)), t0, F(-0.00019528820080235072)), t0, F(0.10276986414354462)), t0, F(1.12837924718392)) * x);
        result_at[i] = result_next;
    }
}

KERNEL static void erf_grad_e05f6408_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g * (exp(-(x * x)) * F(1.1283791670955126));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_1baaf174_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *gate_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float gate = gate_at[i];
        const float result_next = x / (F(1) + exp_raised(-gate));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_grad_81096f2c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *gate_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float gate = gate_at[i];
        const float result_next = g / (F(1) + exp_raised(-gate));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_grad_gate_ee4fb997_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *gate_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float gate = gate_at[i];
        const float t0 = F(1) + exp_raised(-gate);
        const float result_next = g * ((F(1) - F(1) / t0) / t0 * x);
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_d68feefd_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = x * x;
        const float result_next = x / (F(1) + exp_raised(madd(madd(madd(madd(madd(madd(t0, F(-3.6112384887987403e-09), F(2.6689307069602264e-07)), t0, F(-7.938223061765542e-06)), t0, F(0.0001104803485021645)), t0, F(6.625987330945041e-05)), t0, F(-0.07266856685033715)), t0, F(-1.5957684323174453)) * x));
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_13ee3f64_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = x * (tanh(x * madd(x * x, F(0.035677408136300125), F(0.7978845608028654))) + F(1)) * F(0.5);
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_grad_0d297da7_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t0 = maximum(minimum(x, F(5.89)), F(-5.89));
        const float t1 = t0 * t0;
        const float result_next = g * (madd(madd(madd(madd(madd(t1, F(0.021550504997743716), F(4.0163412132073955)), t1, F(2.147036922298806)), t1, F(1589.550495982107)), t1, F(-3462.289652761215)), t1, F(89125.23245728601)) / madd(madd(madd(madd(t1 + F(21.45083173068162), t1, F(393.5294105101043)), t1, F(4577.564452374487)), t1, F(32895.51896815228)), t1, F(111701.80177142502)) * t0 + F(0.5));
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_grad_33a1aeb8_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t0 = x * x;
        const float t1 = tanh(x * madd(t0, F(0.035677408136300125), F(0.7978845608028654)));
        const float result_next = g * ((t1 + F(1)) * madd(x * (F(1) - t1), madd(t0, F(0.10703222440890037), F(0.7978845608028654)), F(1)) * F(0.5));
        result_at[i] = result_next;
    }
}

KERNEL static void hardsigmoid_88f1ff1d_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = minimum(maximum(x + F(3), F(0)), F(6)) * F(0.16666666666666666);
        result_at[i] = result_next;
    }
}

KERNEL static void hardsigmoid_grad_d575d8e2_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(fabs(x) < F(3), g * F(0.16666666666666666), F(0));
        result_at[i] = result_next;
    }
}

KERNEL static void hardswish_e8462cd1_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = x * (minimum(maximum(x + F(3), F(0)), F(6)) * F(0.16666666666666666));
        result_at[i] = result_next;
    }
}

KERNEL static void hardswish_grad_77d4bfb9_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(x <= F(-3), F(0), select(x >= F(3), g, g * madd(x, F(0.3333333333333333), F(0.5))));
        result_at[i] = result_next;
    }
}

KERNEL static void hardtanh_grad_d1239bf7_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(x > F(s0), select(x < F(s1), g, F(0)), F(0));
        result_at[i] = result_next;
    }
}

KERNEL static void hardtanh_of_half_grad_d1239bf7_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(x > F(s0), select(x < F(s1), g, F(0)), F(0));
        result_at[i] = result_next;
    }
}

KERNEL static void huber_3d8f72ad_f(const Call *call, int64_t begin, int64_t end) {
    const float *a_at = (const float *)call->arrays[0];
    const float *b_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float a = a_at[i];
        const float b = b_at[i];
        const float t0 = fabs(a - b);
        const float t1 = minimum(t0, F(s0));
        const float result_next = t1 * F(s1) * (t0 - t1 * F(0.5));
        result_at[i] = result_next;
    }
}

KERNEL static void huber_grad_3b749ca3_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *a_at = (const float *)call->arrays[1];
    const float *b_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float a = a_at[i];
        const float b = b_at[i];
        const float result_next = g * (maximum(minimum(a - b, F(s0)), F(s1)) * F(s2));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_3ad7fa92_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = t * (log(select(t == F(0), F(1), t)) - x);
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_grad_target_8ce1747e_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = g * ((log(select(t == F(0), F(1), t)) + F(1) - x) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_62412190_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = exp(t) * (t - x);
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_grad_188c1587_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *t_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float t = t_at[i];
        const float result_next = g * (exp(t) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_grad_target_41804c0d_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *t_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t = t_at[i];
        const float result_next = g * (exp(t) * F(s0) * (t - x + F(1)));
        result_at[i] = result_next;
    }
}

KERNEL static void leaky_relu_fdcc414e_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = maximum(x, F(0)) + minimum(x, F(0)) * F(s0);
        result_at[i] = result_next;
    }
}

KERNEL static void leaky_relu_grad_2f4e266f_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *y_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float y = y_at[i];
        const float result_next = select(y > F(0), g, g * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void logaddexp_grad_7f2ce2fa_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x1_at = (const float *)call->arrays[1];
    const float *x2_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x1 = x1_at[i];
        const float x2 = x2_at[i];
        const float result_next = g / (F(1) + exp_raised(x2 - x1));
        result_at[i] = result_next;
    }
}

KERNEL static void logsigmoid_b868e872_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        const float result_next = minimum(x, F(0)) - t1 * madd(madd(madd(madd(t2, F(0.2817836600155316), F(0.2796059582480056)), t2, F(0.40024910789791673)), t2, F(0.6666631466843957)), t2, F(2.0000000079219986));
        result_at[i] = result_next;
    }
}

KERNEL static void logsigmoid_grad_fd673de7_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g / (F(1) + exp_raised(x));
        result_at[i] = result_next;
    }
}

KERNEL static void mish_b099e3ff_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = exp(minimum(x, F(20)));
        const float t1 = t0 * (t0 + F(2));
        const float result_next = x * (t1 / (t1 + F(2)));
        result_at[i] = result_next;
    }
}

KERNEL static void mish_grad_1dbf62c9_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t0 = exp(minimum(x, F(20)));
        const float t1 = t0 * (t0 + F(2));
        const float t2 = t1 / (t1 + F(2));
        const float result_next = g * (t2 + x * (F(1) - t2 * t2) / (F(1) + exp_raised(-x)));
        result_at[i] = result_next;
    }
}

KERNEL static void norm_share_2129fb1c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *norm_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float norm = norm_at[i];
        const float result_next = g * (x / select(norm == F(0), F(1), norm));
        result_at[i] = result_next;
    }
}

KERNEL static void prelu_18c6f07f_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    const float *weight_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float weight = weight_at[i];
        const float result_next = select(x > F(0), x, x * weight);
        result_at[i] = result_next;
    }
}

KERNEL static void prelu_grad_ac04200e_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    const float *weight_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float weight = weight_at[i];
        const float result_next = select(x > F(0), g, g * weight);
        result_at[i] = result_next;
    }
}

KERNEL static void reciprocal_grad_4339582c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = -(g * x * x);
        result_at[i] = result_next;
    }
}

KERNEL static void relu_dropout_grad_1460f219_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *y_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float y = y_at[i];
        const float result_next = select(y <= F(0), F(0), g * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void selu_00b62fc2_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = tanh(minimum(x, F(0)) * F(0.5));
        const float result_next = (maximum(x, F(0)) + t0 * F(2) / (F(1) - t0) * F(1.6732632423543772)) * F(1.0507009873554805);
        result_at[i] = result_next;
    }
}

KERNEL static void selu_grad_98f3e13c_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *y_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float y = y_at[i];
        const float result_next = g * select(y > F(0), F(1.0507009873554805), y + F(1.7580993408473766));
        result_at[i] = result_next;
    }
}

KERNEL static void selu_of_half_00b62fc2_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = tanh(minimum(x, F(0)) * F(0.5));
        const float result_next = (maximum(x, F(0)) + t0 * F(2) / (F(1) - t0) * F(1.6732632423543772)) * F(1.0507009873554805);
        result_at[i] = result_next;
    }
}

KERNEL static void selu_of_half_grad_d0af7bd7_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g * select(x > F(0), F(1.0507009873554805), exp(minimum(x, F(0))) * F(1.7580993408473766));
        result_at[i] = result_next;
    }
}

KERNEL static void sigmoid_5043fc48_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = F(1) / (F(1) + exp_raised(-x));
        result_at[i] = result_next;
    }
}

KERNEL static void sigmoid_grad_9df63887_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *y_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float y = y_at[i];
        const float result_next = g * (y * (F(1) - y));
        result_at[i] = result_next;
    }
}

KERNEL static void silu_3f3dd9e1_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = x / (F(1) + exp_raised(-x));
        result_at[i] = result_next;
    }
}

KERNEL static void silu_grad_27fa6443_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t0 = F(1) + exp_raised(-x);
        const float result_next = g * ((x * (F(1) - F(1) / t0) + F(1)) / t0);
        result_at[i] = result_next;
    }
}

KERNEL static void softplus_bcbb5be2_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float t0 = x * F(s0);
        const float t1 = exp(-fabs(t0));
        const float t2 = t1 / (t1 + F(2));
        const float t3 = t2 * t2;
        const float result_next = select(t0 > F(s1), x, (maximum(t0, F(0)) + t2 * madd(madd(madd(madd(t3, F(0.2817836600155316), F(0.2796059582480056)), t3, F(0.40024910789791673)), t3, F(0.6666631466843957)), t3, F(2.0000000079219986))) / F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void softplus_grad_1a1c4bf6_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = select(x * F(s0) > F(s1), g, g / (F(1) + exp_raised(x * F(s2))));
        result_at[i] = result_next;
    }
}

KERNEL static void softsign_5e1001af_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_at = (const float *)call->arrays[0];
    float *result_at = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_at[i];
        const float result_next = x / (fabs(x) + F(1));
        result_at[i] = result_next;
    }
}

KERNEL static void softsign_grad_1b9c5274_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float t0 = fabs(x) + F(1);
        const float result_next = g / (t0 * t0);
        result_at[i] = result_next;
    }
}

KERNEL static void squared_error_grad_c2234ec5_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *a_at = (const float *)call->arrays[1];
    const float *b_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float a = a_at[i];
        const float b = b_at[i];
        const float result_next = g * F(s0) * (a - b);
        result_at[i] = result_next;
    }
}

KERNEL static void swish_gated_50b5f62f_f(const Call *call, int64_t begin, int64_t end) {
    const float *gate_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float gate = gate_at[i];
        const float x = x_at[i];
        const float result_next = x * (gate / (F(1) + exp_raised(-gate)));
        result_at[i] = result_next;
    }
}

KERNEL static void swish_gated_grad_gate_d977156f_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *gate_at = (const float *)call->arrays[1];
    const float *x_at = (const float *)call->arrays[2];
    float *result_at = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float gate = gate_at[i];
        const float x = x_at[i];
        const float t0 = F(1) + exp_raised(-gate);
        const float t1 = F(1) / t0;
        const float result_next = g * ((t1 + (F(1) - t1) / t0 * gate) * x);
        result_at[i] = result_next;
    }
}

KERNEL static void tan_grad_c22ce4d5_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g * (x * x + F(1));
        result_at[i] = result_next;
    }
}

KERNEL static void tanh_grad_1fc95c07_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_at = (const float *)call->arrays[0];
    const float *x_at = (const float *)call->arrays[1];
    float *result_at = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_at[i];
        const float x = x_at[i];
        const float result_next = g * (F(1) - x * x);
        result_at[i] = result_next;
    }
}

KERNEL static void sgd_648162b8_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float p_next = p - (g + p * F(s0)) * F(s1);
        p_at[i] = p_next;
    }
}

KERNEL static void sgd_784f21b4_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float p_next = p - g * F(s0);
        p_at[i] = p_next;
    }
}

KERNEL static void sgd_bc4693ea_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float t0 = g + p * F(s0);
        const float p_next = p - t0 * F(s1);
        const float buffer_next = t0;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void sgd_6fa36da6_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float p_next = p - g * F(s0);
        const float buffer_next = g;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void sgd_8259def2_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float buffer = buffer_at[i];
        const float t0 = buffer * F(s0) + (g + p * F(s1)) * F(s2);
        const float p_next = p - t0 * F(s3);
        const float buffer_next = t0;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void sgd_9c9d728a_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float buffer = buffer_at[i];
        const float t0 = buffer * F(s0) + g * F(s1);
        const float p_next = p - t0 * F(s2);
        const float buffer_next = t0;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void sgd_6875d8bd_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float buffer = buffer_at[i];
        const float t0 = g + p * F(s0);
        const float t1 = buffer * F(s1) + t0 * F(s2);
        const float p_next = p - (t0 + t1 * F(s1)) * F(s3);
        const float buffer_next = t1;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void sgd_171ca189_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *buffer_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float buffer = buffer_at[i];
        const float t0 = buffer * F(s0) + g * F(s1);
        const float p_next = p - (g + t0 * F(s0)) * F(s2);
        const float buffer_next = t0;
        p_at[i] = p_next;
        buffer_at[i] = buffer_next;
    }
}

KERNEL static void adam_dc6cd334_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *first_at = (float *)call->arrays[2];
    float *second_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    const float s6 = F(call->numbers[6]);
    const float s7 = F(call->numbers[7]);
    const float s8 = F(call->numbers[8]);
    const float s9 = F(call->numbers[9]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float first = first_at[i];
        const float second = second_at[i];
        const float t0 = g + p * F(s0);
        const bool t1 = ((t0 - t0 == F(0)) & (second - second == F(0)));
        const float t2 = select(t1, maximum(minimum(t0, F(s1)), F(s2)), t0);
        const float t3 = first + (t2 - first) * F(s3);
        const float t4 = second * F(s4) + t2 * F(s5) * t2;
        const float t5 = select(t1, minimum(t4, F(s6)), t4);
        const float p_next = p - t3 / (sqrt(t5) / F(s7) + F(s8)) * F(s9);
        const float first_next = t3;
        const float second_next = t5;
        p_at[i] = p_next;
        first_at[i] = first_next;
        second_at[i] = second_next;
    }
}

KERNEL static void adam_03760ceb_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *first_at = (float *)call->arrays[2];
    float *second_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    const float s6 = F(call->numbers[6]);
    const float s7 = F(call->numbers[7]);
    const float s8 = F(call->numbers[8]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float first = first_at[i];
        const float second = second_at[i];
        const bool t0 = ((g - g == F(0)) & (second - second == F(0)));
        const float t1 = select(t0, maximum(minimum(g, F(s0)), F(s1)), g);
        const float t2 = first + (t1 - first) * F(s2);
        const float t3 = second * F(s3) + t1 * F(s4) * t1;
        const float t4 = select(t0, minimum(t3, F(s5)), t3);
        const float p_next = p - t2 / (sqrt(t4) / F(s6) + F(s7)) * F(s8);
        const float first_next = t2;
        const float second_next = t4;
        p_at[i] = p_next;
        first_at[i] = first_next;
        second_at[i] = second_next;
    }
}

KERNEL static void adam_88bea725_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *first_at = (float *)call->arrays[2];
    float *second_at = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    const float s6 = F(call->numbers[6]);
    const float s7 = F(call->numbers[7]);
    const float s8 = F(call->numbers[8]);
    const float s9 = F(call->numbers[9]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float first = first_at[i];
        const float second = second_at[i];
        const bool t0 = ((g - g == F(0)) & (second - second == F(0)));
        const float t1 = select(t0, maximum(minimum(g, F(s1)), F(s2)), g);
        const float t2 = first + (t1 - first) * F(s3);
        const float t3 = second * F(s4) + t1 * F(s5) * t1;
        const float t4 = select(t0, minimum(t3, F(s6)), t3);
        const float p_next = p * F(s0) - t2 / (sqrt(t4) / F(s7) + F(s8)) * F(s9);
        const float first_next = t2;
        const float second_next = t4;
        p_at[i] = p_next;
        first_at[i] = first_next;
        second_at[i] = second_next;
    }
}

KERNEL static void lion_409e092b_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *m_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float m = m_at[i];
        const float t0 = m * F(s1) + g * F(s2);
        const float p_next = p * F(s0) - select(t0 > F(0), F(1), select(t0 < F(0), F(-1), t0)) * F(s3);
        const float m_next = m * F(s4) + g * F(s5);
        p_at[i] = p_next;
        m_at[i] = m_next;
    }
}

KERNEL static void lion_94b6f869_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *m_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float m = m_at[i];
        const float t0 = m * F(s0) + g * F(s1);
        const float p_next = p - select(t0 > F(0), F(1), select(t0 < F(0), F(-1), t0)) * F(s2);
        const float m_next = m * F(s3) + g * F(s4);
        p_at[i] = p_next;
        m_at[i] = m_next;
    }
}

KERNEL static void rmsprop_a3fa3308_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *second_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    const float s6 = F(call->numbers[6]);
    const float s7 = F(call->numbers[7]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float second = second_at[i];
        const float t0 = g + p * F(s0);
        const bool t1 = ((t0 - t0 == F(0)) & (second - second == F(0)));
        const float t2 = select(t1, maximum(minimum(t0, F(s1)), F(s2)), t0);
        const float t3 = second * F(s3) + t2 * F(s4) * t2;
        const float t4 = select(t1, minimum(t3, F(s5)), t3);
        const float p_next = p - t2 / (sqrt(t4) + F(s6)) * F(s7);
        const float second_next = t4;
        p_at[i] = p_next;
        second_at[i] = second_next;
    }
}

KERNEL static void rmsprop_bdfd2607_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *second_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    const float s3 = F(call->numbers[3]);
    const float s4 = F(call->numbers[4]);
    const float s5 = F(call->numbers[5]);
    const float s6 = F(call->numbers[6]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float second = second_at[i];
        const bool t0 = ((g - g == F(0)) & (second - second == F(0)));
        const float t1 = select(t0, maximum(minimum(g, F(s0)), F(s1)), g);
        const float t2 = second * F(s2) + t1 * F(s3) * t1;
        const float t3 = select(t0, minimum(t2, F(s4)), t2);
        const float p_next = p - t1 / (sqrt(t3) + F(s5)) * F(s6);
        const float second_next = t3;
        p_at[i] = p_next;
        second_at[i] = second_next;
    }
}

KERNEL static void adagrad_7207153d_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *total_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float total = total_at[i];
        const float t0 = g + p * F(s0);
        const float t1 = total + t0 * t0;
        const float p_next = p - t0 / (sqrt(t1) + F(s1)) * F(s2);
        const float total_next = t1;
        p_at[i] = p_next;
        total_at[i] = total_next;
    }
}

KERNEL static void adagrad_6e402625_f(const Call *call, int64_t begin, int64_t end) {
    float *p_at = (float *)call->arrays[0];
    const float *g_at = (const float *)call->arrays[1];
    float *total_at = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float p = p_at[i];
        const float g = g_at[i];
        const float total = total_at[i];
        const float t0 = total + g * g;
        const float p_next = p - g / (sqrt(t0) + F(s0)) * F(s1);
        const float total_next = t0;
        p_at[i] = p_next;
        total_at[i] = total_next;
    }
}

const Entry formulas_float[] = {
    {"absolute_error_grad_2c32bb27_f", absolute_error_grad_2c32bb27_f},
    {"acos_grad_7d54ab2e_f", acos_grad_7d54ab2e_f},
    {"acosh_grad_e690488e_f", acosh_grad_e690488e_f},
    {"asin_grad_2be5566a_f", asin_grad_2be5566a_f},
    {"asinh_grad_a89ac411_f", asinh_grad_a89ac411_f},
    {"atan2_grad_x1_ecf7af2e_f", atan2_grad_x1_ecf7af2e_f},
    {"atan2_grad_x2_8a6ea00d_f", atan2_grad_x2_8a6ea00d_f},
    {"atan_grad_5380934b_f", atan_grad_5380934b_f},
    {"atanh_grad_790be480_f", atanh_grad_790be480_f},
    {"bce_85a229ca_f", bce_85a229ca_f},
    {"bce_17aea40a_f", bce_17aea40a_f},
    {"bce_grad_27361c80_f", bce_grad_27361c80_f},
    {"bce_grad_dc63dd16_f", bce_grad_dc63dd16_f},
    {"bce_grad_target_5209d21c_f", bce_grad_target_5209d21c_f},
    {"bce_grad_target_4a45a150_f", bce_grad_target_4a45a150_f},
    {"bce_logits_014b1feb_f", bce_logits_014b1feb_f},
    {"bce_logits_41724525_f", bce_logits_41724525_f},
    {"bce_logits_grad_87951dd1_f", bce_logits_grad_87951dd1_f},
    {"bce_logits_grad_0df10b6c_f", bce_logits_grad_0df10b6c_f},
    {"bce_logits_grad_positive_5565ccb0_f", bce_logits_grad_positive_5565ccb0_f},
    {"bce_logits_grad_positive_c1652aa9_f", bce_logits_grad_positive_c1652aa9_f},
    {"bce_logits_grad_target_003f9eab_f", bce_logits_grad_target_003f9eab_f},
    {"copysign_grad_681d7994_f", copysign_grad_681d7994_f},
    {"divide_grad_bb9ae3f8_f", divide_grad_bb9ae3f8_f},
    {"elu_b474fc48_f", elu_b474fc48_f},
    {"elu_grad_8742f740_f", elu_grad_8742f740_f},
    {"elu_of_half_b474fc48_f", elu_of_half_b474fc48_f},
    {"elu_of_half_grad_f578497c_f", elu_of_half_grad_f578497c_f},
    {"erf_509c16b7_f", erf_509c16b7_f},
    {"erf_grad_e05f6408_f", erf_grad_e05f6408_f},
    {"gated_1baaf174_f", gated_1baaf174_f},
    {"gated_grad_81096f2c_f", gated_grad_81096f2c_f},
    {"gated_grad_gate_ee4fb997_f", gated_grad_gate_ee4fb997_f},
    {"gelu_d68feefd_f", gelu_d68feefd_f},
    {"gelu_13ee3f64_f", gelu_13ee3f64_f},
    {"gelu_grad_0d297da7_f", gelu_grad_0d297da7_f},
    {"gelu_grad_33a1aeb8_f", gelu_grad_33a1aeb8_f},
    {"hardsigmoid_88f1ff1d_f", hardsigmoid_88f1ff1d_f},
    {"hardsigmoid_grad_d575d8e2_f", hardsigmoid_grad_d575d8e2_f},
    {"hardswish_e8462cd1_f", hardswish_e8462cd1_f},
    {"hardswish_grad_77d4bfb9_f", hardswish_grad_77d4bfb9_f},
    {"hardtanh_grad_d1239bf7_f", hardtanh_grad_d1239bf7_f},
    {"hardtanh_of_half_grad_d1239bf7_f", hardtanh_of_half_grad_d1239bf7_f},
    {"huber_3d8f72ad_f", huber_3d8f72ad_f},
    {"huber_grad_3b749ca3_f", huber_grad_3b749ca3_f},
    {"kl_div_3ad7fa92_f", kl_div_3ad7fa92_f},
    {"kl_div_grad_target_8ce1747e_f", kl_div_grad_target_8ce1747e_f},
    {"kl_div_log_62412190_f", kl_div_log_62412190_f},
    {"kl_div_log_grad_188c1587_f", kl_div_log_grad_188c1587_f},
    {"kl_div_log_grad_target_41804c0d_f", kl_div_log_grad_target_41804c0d_f},
    {"leaky_relu_fdcc414e_f", leaky_relu_fdcc414e_f},
    {"leaky_relu_grad_2f4e266f_f", leaky_relu_grad_2f4e266f_f},
    {"logaddexp_grad_7f2ce2fa_f", logaddexp_grad_7f2ce2fa_f},
    {"logsigmoid_b868e872_f", logsigmoid_b868e872_f},
    {"logsigmoid_grad_fd673de7_f", logsigmoid_grad_fd673de7_f},
    {"mish_b099e3ff_f", mish_b099e3ff_f},
    {"mish_grad_1dbf62c9_f", mish_grad_1dbf62c9_f},
    {"norm_share_2129fb1c_f", norm_share_2129fb1c_f},
    {"prelu_18c6f07f_f", prelu_18c6f07f_f},
    {"prelu_grad_ac04200e_f", prelu_grad_ac04200e_f},
    {"reciprocal_grad_4339582c_f", reciprocal_grad_4339582c_f},
    {"relu_dropout_grad_1460f219_f", relu_dropout_grad_1460f219_f},
    {"selu_00b62fc2_f", selu_00b62fc2_f},
    {"selu_grad_98f3e13c_f", selu_grad_98f3e13c_f},
    {"selu_of_half_00b62fc2_f", selu_of_half_00b62fc2_f},
    {"selu_of_half_grad_d0af7bd7_f", selu_of_half_grad_d0af7bd7_f},
    {"sigmoid_5043fc48_f", sigmoid_5043fc48_f},
    {"sigmoid_grad_9df63887_f", sigmoid_grad_9df63887_f},
    {"silu_3f3dd9e1_f", silu_3f3dd9e1_f},
    {"silu_grad_27fa6443_f", silu_grad_27fa6443_f},
    {"softplus_bcbb5be2_f", softplus_bcbb5be2_f},
    {"softplus_grad_1a1c4bf6_f", softplus_grad_1a1c4bf6_f},
    {"softsign_5e1001af_f", softsign_5e1001af_f},
    {"softsign_grad_1b9c5274_f", softsign_grad_1b9c5274_f},
    {"squared_error_grad_c2234ec5_f", squared_error_grad_c2234ec5_f},
    {"swish_gated_50b5f62f_f", swish_gated_50b5f62f_f},
    {"swish_gated_grad_gate_d977156f_f", swish_gated_grad_gate_d977156f_f},
    {"tan_grad_c22ce4d5_f", tan_grad_c22ce4d5_f},
    {"tanh_grad_1fc95c07_f", tanh_grad_1fc95c07_f},
    {"sgd_648162b8_f", sgd_648162b8_f},
    {"sgd_784f21b4_f", sgd_784f21b4_f},
    {"sgd_bc4693ea_f", sgd_bc4693ea_f},
    {"sgd_6fa36da6_f", sgd_6fa36da6_f},
    {"sgd_8259def2_f", sgd_8259def2_f},
    {"sgd_9c9d728a_f", sgd_9c9d728a_f},
    {"sgd_6875d8bd_f", sgd_6875d8bd_f},
    {"sgd_171ca189_f", sgd_171ca189_f},
    {"adam_dc6cd334_f", adam_dc6cd334_f},
    {"adam_03760ceb_f", adam_03760ceb_f},
    {"adam_88bea725_f", adam_88bea725_f},
    {"lion_409e092b_f", lion_409e092b_f},
    {"lion_94b6f869_f", lion_94b6f869_f},
    {"rmsprop_a3fa3308_f", rmsprop_a3fa3308_f},
    {"rmsprop_bdfd2607_f", rmsprop_bdfd2607_f},
    {"adagrad_7207153d_f", adagrad_7207153d_f},
    {"adagrad_6e402625_f", adagrad_6e402625_f},
    {NULL, NULL},
};
