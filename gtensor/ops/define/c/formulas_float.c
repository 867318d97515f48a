// Formulas of float. Written by tests/formulas_in_c.py.

#include <stdbool.h>

#include "../../../../kernels/cpu/functions.h"

#define F(x) ((float)(x))
#define exp exp_float
#define tanh tanh_float
#define log log_float
#define log1p log1p_float
#define fabs fabsf
#define sqrt sqrtf
#define copysign copysignf
#define floor floorf

KERNEL static void acos_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = -(g / sqrt((F(1) - x) * (x + F(1))));
    }
}

KERNEL static void acosh_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / (sqrt(x - F(1)) * sqrt(x + F(1)));
    }
}

KERNEL static void asin_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / sqrt((F(1) - x) * (x + F(1)));
    }
}

KERNEL static void asinh_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / sqrt(x * x + F(1));
    }
}

KERNEL static void atan2_grad_x1_g_x1_x2_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x1_given = (const float *)call->arrays[1];
    const float *x2_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x1 = x1_given[i];
        const float x2 = x2_given[i];
        const float t0 = x1 * x1 + x2 * x2;
        result0[i] = g * x2 / (t0 == F(0) ? F(1) : t0);
    }
}

KERNEL static void atan2_grad_x2_g_x1_x2_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x1_given = (const float *)call->arrays[1];
    const float *x2_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x1 = x1_given[i];
        const float x2 = x2_given[i];
        const float t0 = x1 * x1 + x2 * x2;
        result0[i] = -(g * x1) / (t0 == F(0) ? F(1) : t0);
    }
}

KERNEL static void atan_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / (x * x + F(1));
    }
}

KERNEL static void atanh_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / ((F(1) - x) * (x + F(1)));
    }
}

KERNEL static void bce_x_t_weight_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    const float *weight_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        const float weight = weight_given[i];
        const float t0 = log1p(-x);
        const float t1 = log(x);
        result0[i] = ((t - F(1)) * (t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - t * (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * weight;
    }
}

KERNEL static void bce_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        const float t0 = log1p(-x);
        const float t1 = log(x);
        result0[i] = (t - F(1)) * (t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - t * (t1 > F(-100) || t1 != t1 ? t1 : F(-100));
    }
}

KERNEL static void bce_grad_g_x_t_weight_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    const float *weight_given = (const float *)call->arrays[3];
    float *result0 = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        const float weight = weight_given[i];
        const float t0 = x * (F(1) - x);
        result0[i] = g * ((x - t) * F(s0) / (t0 > F(1e-12) || t0 != t0 ? t0 : F(1e-12))) * weight;
    }
}

KERNEL static void bce_grad_g_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        const float t0 = x * (F(1) - x);
        result0[i] = g * ((x - t) * F(s0) / (t0 > F(1e-12) || t0 != t0 ? t0 : F(1e-12)));
    }
}

KERNEL static void bce_grad_target_g_x_weight_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *weight_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float weight = weight_given[i];
        const float t0 = log1p(-x);
        const float t1 = log(x);
        result0[i] = g * (((t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * F(s0)) * weight;
    }
}

KERNEL static void bce_grad_target_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = log1p(-x);
        const float t1 = log(x);
        result0[i] = g * (((t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * F(s0));
    }
}

KERNEL static void bce_logits_x_t_weight_positive_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    const float *weight_given = (const float *)call->arrays[2];
    const float *positive_given = (const float *)call->arrays[3];
    float *result0 = (float *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        const float weight = weight_given[i];
        const float positive = positive_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = ((F(1) - t) * x + (t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986)) - (x < F(0) || x != x ? x : F(0))) * ((positive - F(1)) * t + F(1))) * weight;
    }
}

KERNEL static void bce_logits_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = (F(1) - t) * x + (t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986)) - (x < F(0) || x != x ? x : F(0)));
    }
}

KERNEL static void bce_logits_grad_g_x_t_weight_positive_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    const float *weight_given = (const float *)call->arrays[3];
    const float *positive_given = (const float *)call->arrays[4];
    float *result0 = (float *)call->arrays[5];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        const float weight = weight_given[i];
        const float positive = positive_given[i];
        const float t0 = positive * t;
        result0[i] = g * (((t0 + F(1) - t) / (exp(-x) + F(1)) - t0) * F(s0)) * weight;
    }
}

KERNEL static void bce_logits_grad_g_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        result0[i] = g * ((F(1) / (exp(-x) + F(1)) - t) * F(s0));
    }
}

KERNEL static void bce_logits_grad_positive_g_x_t_weight_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    const float *weight_given = (const float *)call->arrays[3];
    float *result0 = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        const float weight = weight_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = g * (t * F(s0) * (t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986)) - (x < F(0) || x != x ? x : F(0)))) * weight;
    }
}

KERNEL static void bce_logits_grad_positive_g_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = g * (t * F(s0) * (t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986)) - (x < F(0) || x != x ? x : F(0))));
    }
}

KERNEL static void bce_logits_grad_target_g_x_weight_positive_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *weight_given = (const float *)call->arrays[2];
    const float *positive_given = (const float *)call->arrays[3];
    float *result0 = (float *)call->arrays[4];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float weight = weight_given[i];
        const float positive = positive_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = g * (((positive - F(1)) * (t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986)) - (x < F(0) || x != x ? x : F(0))) - x) * F(s0)) * weight;
    }
}

KERNEL static void copysign_grad_g_x1_x2_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x1_given = (const float *)call->arrays[1];
    const float *x2_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x1 = x1_given[i];
        const float x2 = x2_given[i];
        result0[i] = g * ((x1 > F(0) ? F(1) : x1 < F(0) ? F(-1) : x1) * copysign(F(1), x2));
    }
}

KERNEL static void divide_grad_g_x2_y_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x2_given = (const float *)call->arrays[1];
    const float *y_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x2 = x2_given[i];
        const float y = y_given[i];
        result0[i] = -(g * y / x2);
    }
}

KERNEL static void elu_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = tanh((x < F(0) || x != x ? x : F(0)) * F(0.5));
        result0[i] = (x > F(0) || x != x ? x : F(0)) + t0 * F(2) / (F(1) - t0) * F(s0);
    }
}

KERNEL static void elu_inverse_y_f(const Call *call, int64_t begin, int64_t end) {
    const float *y_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float y = y_given[i];
        result0[i] = y <= F(0) ? log1p(y / F(s0)) : y;
    }
}

KERNEL static void elu_of_half_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = tanh((x < F(0) || x != x ? x : F(0)) * F(0.5));
        result0[i] = (x > F(0) || x != x ? x : F(0)) + t0 * F(2) / (F(1) - t0) * F(s0);
    }
}

KERNEL static void elu_of_half_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = x > F(0) ? g : g * (exp(x < F(0) || x != x ? x : F(0)) * F(s0));
    }
}

KERNEL static void elu_of_half_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x > F(0) ? F(1) : exp(x < F(0) || x != x ? x : F(0)) * F(s0);
    }
}

KERNEL static void erf_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = x * x;
        const float t1 = t0 < F(16) || t0 != t0 ? t0 : F(16);
        result0[i] = tanh((((((((t1 * F(5.421617099774009e-09) + F(2.7575719685396113e-08)) * t1 + F(-4.794601732465962e-06)) * t1 + F(8.45965684426504e-05)) * t1 + F(-0.0006148382080810998)) * t1 + F(-0.00019528820080235072)) * t1 + F(0.10276986414354462)) * t1 + F(1.12837924718392)) * x);
    }
}

KERNEL static void erf_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g * (exp(-(x * x)) * F(1.1283791670955126));
    }
}

KERNEL static void gated_x_gate_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *gate_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float gate = gate_given[i];
        result0[i] = x / (exp(-gate) + F(1));
    }
}

KERNEL static void gated_grad_g_gate_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *gate_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float gate = gate_given[i];
        result0[i] = g / (exp(-gate) + F(1));
    }
}

KERNEL static void gated_grad_gate_g_x_gate_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *gate_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float gate = gate_given[i];
        const float t0 = exp(-gate) + F(1);
        result0[i] = g * ((F(1) - F(1) / t0) / t0 * x);
    }
}

KERNEL static void gated_grads_g_a_b_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *a_given = (const float *)call->arrays[1];
    const float *b_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    float *result1 = (float *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float a = a_given[i];
        const float b = b_given[i];
        const float t0 = exp(-b) + F(1);
        result0[i] = g * ((F(1) - F(1) / t0) / t0 * a);
        result1[i] = g / t0;
    }
}

KERNEL static void gelu_x_none_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = x * x;
        result0[i] = x / (exp(((((((t0 * F(-3.6112384887987403e-09) + F(2.6689307069602264e-07)) * t0 + F(-7.938223061765542e-06)) * t0 + F(0.0001104803485021645)) * t0 + F(6.625987330945041e-05)) * t0 + F(-0.07266856685033715)) * t0 + F(-1.5957684323174453)) * x) + F(1));
    }
}

KERNEL static void gelu_x_tanh_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x * (tanh(x * (x * x * F(0.035677408136300125) + F(0.7978845608028654))) + F(1)) * F(0.5);
    }
}

KERNEL static void gelu_grad_g_x_none_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = x < F(5.9) || x != x ? x : F(5.9);
        const float t1 = t0 > F(-5.9) || t0 != t0 ? t0 : F(-5.9);
        const float t2 = t1 * t1;
        result0[i] = g * ((((((t2 * F(0.021550504997743716) + F(4.0163412132073955)) * t2 + F(2.147036922298806)) * t2 + F(1589.550495982107)) * t2 + F(-3462.289652761215)) * t2 + F(89125.23245728601)) / (((((t2 + F(21.45083173068162)) * t2 + F(393.5294105101043)) * t2 + F(4577.564452374487)) * t2 + F(32895.51896815228)) * t2 + F(111701.80177142502)) * t1 + F(0.5));
    }
}

KERNEL static void gelu_grad_g_x_tanh_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = x * x;
        const float t1 = tanh(x * (t0 * F(0.035677408136300125) + F(0.7978845608028654)));
        result0[i] = g * ((t1 + F(1)) * (x * (F(1) - t1) * (t0 * F(0.10703222440890037) + F(0.7978845608028654)) + F(1)) * F(0.5));
    }
}

KERNEL static void gelu_grad_x_none_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = x < F(5.9) || x != x ? x : F(5.9);
        const float t1 = t0 > F(-5.9) || t0 != t0 ? t0 : F(-5.9);
        const float t2 = t1 * t1;
        result0[i] = (((((t2 * F(0.021550504997743716) + F(4.0163412132073955)) * t2 + F(2.147036922298806)) * t2 + F(1589.550495982107)) * t2 + F(-3462.289652761215)) * t2 + F(89125.23245728601)) / (((((t2 + F(21.45083173068162)) * t2 + F(393.5294105101043)) * t2 + F(4577.564452374487)) * t2 + F(32895.51896815228)) * t2 + F(111701.80177142502)) * t1 + F(0.5);
    }
}

KERNEL static void gelu_grad_x_tanh_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = x * x;
        const float t1 = tanh(x * (t0 * F(0.035677408136300125) + F(0.7978845608028654)));
        result0[i] = (t1 + F(1)) * (x * (F(1) - t1) * (t0 * F(0.10703222440890037) + F(0.7978845608028654)) + F(1)) * F(0.5);
    }
}

KERNEL static void kl_div_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        result0[i] = t * (log(t == F(0) ? F(1) : t) - x);
    }
}

KERNEL static void kl_div_grad_target_g_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        result0[i] = g * ((log(t == F(0) ? F(1) : t) + F(1) - x) * F(s0));
    }
}

KERNEL static void kl_div_log_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t = t_given[i];
        result0[i] = exp(t) * (t - x);
    }
}

KERNEL static void kl_div_log_grad_g_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *t_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float t = t_given[i];
        result0[i] = g * (exp(t) * F(s0));
    }
}

KERNEL static void kl_div_log_grad_target_g_x_t_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *t_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    const float s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t = t_given[i];
        result0[i] = g * (exp(t) * F(s0) * (t - x + F(1)));
    }
}

KERNEL static void logaddexp_grad_g_x1_x2_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x1_given = (const float *)call->arrays[1];
    const float *x2_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x1 = x1_given[i];
        const float x2 = x2_given[i];
        result0[i] = g / (exp(x2 - x1) + F(1));
    }
}

KERNEL static void logsigmoid_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = exp(-fabs(x));
        const float t1 = t0 / (t0 + F(2));
        const float t2 = t1 * t1;
        result0[i] = (x < F(0) || x != x ? x : F(0)) - t1 * ((((t2 * F(0.2817836600155316) + F(0.2796059582480056)) * t2 + F(0.40024910789791673)) * t2 + F(0.6666631466843957)) * t2 + F(2.0000000079219986));
    }
}

KERNEL static void logsigmoid_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g / (exp(x) + F(1));
    }
}

KERNEL static void logsigmoid_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = F(1) / (exp(x) + F(1));
    }
}

KERNEL static void mish_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = exp(x < F(20) || x != x ? x : F(20));
        const float t1 = t0 * (t0 + F(2));
        result0[i] = x * (t1 / (t1 + F(2)));
    }
}

KERNEL static void mish_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = exp(x < F(20) || x != x ? x : F(20));
        const float t1 = t0 * (t0 + F(2));
        const float t2 = t1 / (t1 + F(2));
        result0[i] = g * (t2 + x * (F(1) - t2 * t2) / (exp(-x) + F(1)));
    }
}

KERNEL static void mish_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = exp(x < F(20) || x != x ? x : F(20));
        const float t1 = t0 * (t0 + F(2));
        const float t2 = t1 / (t1 + F(2));
        result0[i] = t2 + x * (F(1) - t2 * t2) / (exp(-x) + F(1));
    }
}

KERNEL static void norm_share_g_x_norm_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    const float *norm_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float norm = norm_given[i];
        result0[i] = g * (x / (norm == F(0) ? F(1) : norm));
    }
}

KERNEL static void selu_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = tanh((x < F(0) || x != x ? x : F(0)) * F(0.5));
        result0[i] = ((x > F(0) || x != x ? x : F(0)) + t0 * F(2) / (F(1) - t0) * F(1.6732632423543772)) * F(1.0507009873554805);
    }
}

KERNEL static void selu_of_half_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = tanh((x < F(0) || x != x ? x : F(0)) * F(0.5));
        result0[i] = ((x > F(0) || x != x ? x : F(0)) + t0 * F(2) / (F(1) - t0) * F(1.6732632423543772)) * F(1.0507009873554805);
    }
}

KERNEL static void selu_of_half_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = g * (x > F(0) ? F(1.0507009873554805) : exp(x < F(0) || x != x ? x : F(0)) * F(1.7580993408473766));
    }
}

KERNEL static void selu_of_half_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x > F(0) ? F(1.0507009873554805) : exp(x < F(0) || x != x ? x : F(0)) * F(1.7580993408473766);
    }
}

KERNEL static void sigmoid_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = F(1) / (exp(-x) + F(1));
    }
}

KERNEL static void sigmoid_inverse_y_f(const Call *call, int64_t begin, int64_t end) {
    const float *y_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float y = y_given[i];
        result0[i] = log(y / (F(1) - y));
    }
}

KERNEL static void silu_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x / (exp(-x) + F(1));
    }
}

KERNEL static void silu_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = exp(-x) + F(1);
        result0[i] = g * ((x * (F(1) - F(1) / t0) + F(1)) / t0);
    }
}

KERNEL static void silu_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = exp(-x) + F(1);
        result0[i] = (x * (F(1) - F(1) / t0) + F(1)) / t0;
    }
}

KERNEL static void softplus_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = x * F(s0);
        const float t1 = exp(-fabs(t0));
        const float t2 = t1 / (t1 + F(2));
        const float t3 = t2 * t2;
        result0[i] = t0 > F(s1) ? x : ((t0 > F(0) || t0 != t0 ? t0 : F(0)) + t2 * ((((t3 * F(0.2817836600155316) + F(0.2796059582480056)) * t3 + F(0.40024910789791673)) * t3 + F(0.6666631466843957)) * t3 + F(2.0000000079219986))) / F(s0);
    }
}

KERNEL static void softplus_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        result0[i] = x * F(s0) > F(s1) ? g : g / (exp(x * F(s2)) + F(1));
    }
}

KERNEL static void softplus_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    const float s0 = F(call->numbers[0]);
    const float s1 = F(call->numbers[1]);
    const float s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x * F(s0) > F(s1) ? F(1) : F(1) / (exp(x * F(s2)) + F(1));
    }
}

KERNEL static void softsign_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        result0[i] = x / (fabs(x) + F(1));
    }
}

KERNEL static void softsign_grad_g_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float x = x_given[i];
        const float t0 = fabs(x) + F(1);
        result0[i] = g / (t0 * t0);
    }
}

KERNEL static void softsign_grad_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *x_given = (const float *)call->arrays[0];
    float *result0 = (float *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float x = x_given[i];
        const float t0 = fabs(x) + F(1);
        result0[i] = F(1) / (t0 * t0);
    }
}

KERNEL static void swish_gated_gate_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *gate_given = (const float *)call->arrays[0];
    const float *x_given = (const float *)call->arrays[1];
    float *result0 = (float *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float gate = gate_given[i];
        const float x = x_given[i];
        result0[i] = x * (gate / (exp(-gate) + F(1)));
    }
}

KERNEL static void swish_gated_grad_gate_g_gate_x_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *gate_given = (const float *)call->arrays[1];
    const float *x_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float gate = gate_given[i];
        const float x = x_given[i];
        const float t0 = exp(-gate) + F(1);
        const float t1 = F(1) / t0;
        result0[i] = g * ((t1 + (F(1) - t1) / t0 * gate) * x);
    }
}

KERNEL static void swish_gated_grads_g_a_b_f(const Call *call, int64_t begin, int64_t end) {
    const float *g_given = (const float *)call->arrays[0];
    const float *a_given = (const float *)call->arrays[1];
    const float *b_given = (const float *)call->arrays[2];
    float *result0 = (float *)call->arrays[3];
    float *result1 = (float *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const float g = g_given[i];
        const float a = a_given[i];
        const float b = b_given[i];
        const float t0 = exp(-a) + F(1);
        const float t1 = F(1) / t0;
        result0[i] = g * (a / t0);
        result1[i] = g * ((t1 + (F(1) - t1) / t0 * a) * b);
    }
}

const Entry formulas_float[] = {
    {"acos_grad_g_x_f", acos_grad_g_x_f},
    {"acosh_grad_g_x_f", acosh_grad_g_x_f},
    {"asin_grad_g_x_f", asin_grad_g_x_f},
    {"asinh_grad_g_x_f", asinh_grad_g_x_f},
    {"atan2_grad_x1_g_x1_x2_f", atan2_grad_x1_g_x1_x2_f},
    {"atan2_grad_x2_g_x1_x2_f", atan2_grad_x2_g_x1_x2_f},
    {"atan_grad_g_x_f", atan_grad_g_x_f},
    {"atanh_grad_g_x_f", atanh_grad_g_x_f},
    {"bce_x_t_weight_f", bce_x_t_weight_f},
    {"bce_x_t_f", bce_x_t_f},
    {"bce_grad_g_x_t_weight_f", bce_grad_g_x_t_weight_f},
    {"bce_grad_g_x_t_f", bce_grad_g_x_t_f},
    {"bce_grad_target_g_x_weight_f", bce_grad_target_g_x_weight_f},
    {"bce_grad_target_g_x_f", bce_grad_target_g_x_f},
    {"bce_logits_x_t_weight_positive_f", bce_logits_x_t_weight_positive_f},
    {"bce_logits_x_t_f", bce_logits_x_t_f},
    {"bce_logits_grad_g_x_t_weight_positive_f", bce_logits_grad_g_x_t_weight_positive_f},
    {"bce_logits_grad_g_x_t_f", bce_logits_grad_g_x_t_f},
    {"bce_logits_grad_positive_g_x_t_weight_f", bce_logits_grad_positive_g_x_t_weight_f},
    {"bce_logits_grad_positive_g_x_t_f", bce_logits_grad_positive_g_x_t_f},
    {"bce_logits_grad_target_g_x_weight_positive_f", bce_logits_grad_target_g_x_weight_positive_f},
    {"copysign_grad_g_x1_x2_f", copysign_grad_g_x1_x2_f},
    {"divide_grad_g_x2_y_f", divide_grad_g_x2_y_f},
    {"elu_x_f", elu_x_f},
    {"elu_inverse_y_f", elu_inverse_y_f},
    {"elu_of_half_x_f", elu_of_half_x_f},
    {"elu_of_half_grad_g_x_f", elu_of_half_grad_g_x_f},
    {"elu_of_half_grad_x_f", elu_of_half_grad_x_f},
    {"erf_x_f", erf_x_f},
    {"erf_grad_g_x_f", erf_grad_g_x_f},
    {"gated_x_gate_f", gated_x_gate_f},
    {"gated_grad_g_gate_f", gated_grad_g_gate_f},
    {"gated_grad_gate_g_x_gate_f", gated_grad_gate_g_x_gate_f},
    {"gated_grads_g_a_b_f", gated_grads_g_a_b_f},
    {"gelu_x_none_f", gelu_x_none_f},
    {"gelu_x_tanh_f", gelu_x_tanh_f},
    {"gelu_grad_g_x_none_f", gelu_grad_g_x_none_f},
    {"gelu_grad_g_x_tanh_f", gelu_grad_g_x_tanh_f},
    {"gelu_grad_x_none_f", gelu_grad_x_none_f},
    {"gelu_grad_x_tanh_f", gelu_grad_x_tanh_f},
    {"kl_div_x_t_f", kl_div_x_t_f},
    {"kl_div_grad_target_g_x_t_f", kl_div_grad_target_g_x_t_f},
    {"kl_div_log_x_t_f", kl_div_log_x_t_f},
    {"kl_div_log_grad_g_t_f", kl_div_log_grad_g_t_f},
    {"kl_div_log_grad_target_g_x_t_f", kl_div_log_grad_target_g_x_t_f},
    {"logaddexp_grad_g_x1_x2_f", logaddexp_grad_g_x1_x2_f},
    {"logsigmoid_x_f", logsigmoid_x_f},
    {"logsigmoid_grad_g_x_f", logsigmoid_grad_g_x_f},
    {"logsigmoid_grad_x_f", logsigmoid_grad_x_f},
    {"mish_x_f", mish_x_f},
    {"mish_grad_g_x_f", mish_grad_g_x_f},
    {"mish_grad_x_f", mish_grad_x_f},
    {"norm_share_g_x_norm_f", norm_share_g_x_norm_f},
    {"selu_x_f", selu_x_f},
    {"selu_of_half_x_f", selu_of_half_x_f},
    {"selu_of_half_grad_g_x_f", selu_of_half_grad_g_x_f},
    {"selu_of_half_grad_x_f", selu_of_half_grad_x_f},
    {"sigmoid_x_f", sigmoid_x_f},
    {"sigmoid_inverse_y_f", sigmoid_inverse_y_f},
    {"silu_x_f", silu_x_f},
    {"silu_grad_g_x_f", silu_grad_g_x_f},
    {"silu_grad_x_f", silu_grad_x_f},
    {"softplus_x_f", softplus_x_f},
    {"softplus_grad_g_x_f", softplus_grad_g_x_f},
    {"softplus_grad_x_f", softplus_grad_x_f},
    {"softsign_x_f", softsign_x_f},
    {"softsign_grad_g_x_f", softsign_grad_g_x_f},
    {"softsign_grad_x_f", softsign_grad_x_f},
    {"swish_gated_gate_x_f", swish_gated_gate_x_f},
    {"swish_gated_grad_gate_g_gate_x_f", swish_gated_grad_gate_g_gate_x_f},
    {"swish_gated_grads_g_a_b_f", swish_gated_grads_g_a_b_f},
    {NULL, NULL},
};
