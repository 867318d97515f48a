// Formulas of double. Written by tests/formulas_in_c.py.

#include <stdbool.h>

#include "../../../../kernels/cpu/functions.h"

#define F(x) ((double)(x))
#define exp exp_double
#define tanh tanh_double
#define log log_double
#define log1p log1p_double

KERNEL static void acos_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = -(g / sqrt((F(1) - x) * (x + F(1))));
    }
}

KERNEL static void acosh_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / (sqrt(x - F(1)) * sqrt(x + F(1)));
    }
}

KERNEL static void asin_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / sqrt((F(1) - x) * (x + F(1)));
    }
}

KERNEL static void asinh_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / sqrt(x * x + F(1));
    }
}

KERNEL static void atan2_grad_x1_g_x1_x2_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x1_given = (const double *)call->arrays[1];
    const double *x2_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x1 = x1_given[i];
        const double x2 = x2_given[i];
        const double t0 = x1 * x1 + x2 * x2;
        result0[i] = g * x2 / (t0 == F(0) ? F(1) : t0);
    }
}

KERNEL static void atan2_grad_x2_g_x1_x2_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x1_given = (const double *)call->arrays[1];
    const double *x2_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x1 = x1_given[i];
        const double x2 = x2_given[i];
        const double t0 = x1 * x1 + x2 * x2;
        result0[i] = -(g * x1) / (t0 == F(0) ? F(1) : t0);
    }
}

KERNEL static void atan_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / (x * x + F(1));
    }
}

KERNEL static void atanh_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / ((F(1) - x) * (x + F(1)));
    }
}

KERNEL static void bce_x_t_weight_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    const double *weight_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        const double weight = weight_given[i];
        const double t0 = log1p(-x);
        const double t1 = log(x);
        result0[i] = ((t - F(1)) * (t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - t * (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * weight;
    }
}

KERNEL static void bce_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        const double t0 = log1p(-x);
        const double t1 = log(x);
        result0[i] = (t - F(1)) * (t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - t * (t1 > F(-100) || t1 != t1 ? t1 : F(-100));
    }
}

KERNEL static void bce_grad_g_x_t_weight_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    const double *weight_given = (const double *)call->arrays[3];
    double *result0 = (double *)call->arrays[4];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        const double weight = weight_given[i];
        const double t0 = x * (F(1) - x);
        result0[i] = g * ((x - t) * F(s0) / (t0 > F(1e-12) || t0 != t0 ? t0 : F(1e-12))) * weight;
    }
}

KERNEL static void bce_grad_g_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        const double t0 = x * (F(1) - x);
        result0[i] = g * ((x - t) * F(s0) / (t0 > F(1e-12) || t0 != t0 ? t0 : F(1e-12)));
    }
}

KERNEL static void bce_grad_target_g_x_weight_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *weight_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double weight = weight_given[i];
        const double t0 = log1p(-x);
        const double t1 = log(x);
        result0[i] = g * (((t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * F(s0)) * weight;
    }
}

KERNEL static void bce_grad_target_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = log1p(-x);
        const double t1 = log(x);
        result0[i] = g * (((t0 > F(-100) || t0 != t0 ? t0 : F(-100)) - (t1 > F(-100) || t1 != t1 ? t1 : F(-100))) * F(s0));
    }
}

KERNEL static void bce_logits_x_t_weight_positive_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    const double *weight_given = (const double *)call->arrays[2];
    const double *positive_given = (const double *)call->arrays[3];
    double *result0 = (double *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        const double weight = weight_given[i];
        const double positive = positive_given[i];
        result0[i] = ((F(1) - t) * x + (log1p(exp(-fabs(x))) - (x < F(0) || x != x ? x : F(0))) * ((positive - F(1)) * t + F(1))) * weight;
    }
}

KERNEL static void bce_logits_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = (F(1) - t) * x + (log1p(exp(-fabs(x))) - (x < F(0) || x != x ? x : F(0)));
    }
}

KERNEL static void bce_logits_grad_g_x_t_weight_positive_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    const double *weight_given = (const double *)call->arrays[3];
    const double *positive_given = (const double *)call->arrays[4];
    double *result0 = (double *)call->arrays[5];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        const double weight = weight_given[i];
        const double positive = positive_given[i];
        const double t0 = positive * t;
        result0[i] = g * (((t0 + F(1) - t) / (exp(-x) + F(1)) - t0) * F(s0)) * weight;
    }
}

KERNEL static void bce_logits_grad_g_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = g * ((F(1) / (exp(-x) + F(1)) - t) * F(s0));
    }
}

KERNEL static void bce_logits_grad_positive_g_x_t_weight_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    const double *weight_given = (const double *)call->arrays[3];
    double *result0 = (double *)call->arrays[4];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        const double weight = weight_given[i];
        result0[i] = g * (t * F(s0) * (log1p(exp(-fabs(x))) - (x < F(0) || x != x ? x : F(0)))) * weight;
    }
}

KERNEL static void bce_logits_grad_positive_g_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = g * (t * F(s0) * (log1p(exp(-fabs(x))) - (x < F(0) || x != x ? x : F(0))));
    }
}

KERNEL static void bce_logits_grad_target_g_x_weight_positive_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *weight_given = (const double *)call->arrays[2];
    const double *positive_given = (const double *)call->arrays[3];
    double *result0 = (double *)call->arrays[4];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double weight = weight_given[i];
        const double positive = positive_given[i];
        result0[i] = g * (((positive - F(1)) * (log1p(exp(-fabs(x))) - (x < F(0) || x != x ? x : F(0))) - x) * F(s0)) * weight;
    }
}

KERNEL static void copysign_grad_g_x1_x2_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x1_given = (const double *)call->arrays[1];
    const double *x2_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x1 = x1_given[i];
        const double x2 = x2_given[i];
        result0[i] = g * ((x1 > F(0) ? F(1) : x1 < F(0) ? F(-1) : x1) * copysign(F(1), x2));
    }
}

KERNEL static void divide_grad_g_x2_y_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x2_given = (const double *)call->arrays[1];
    const double *y_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x2 = x2_given[i];
        const double y = y_given[i];
        result0[i] = -(g * y / x2);
    }
}

KERNEL static void elu_inverse_y_d(const Call *call, int64_t begin, int64_t end) {
    const double *y_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double y = y_given[i];
        result0[i] = y <= F(0) ? log1p(y / F(s0)) : y;
    }
}

KERNEL static void elu_of_half_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = x > F(0) ? g : g * (exp(x < F(0) || x != x ? x : F(0)) * F(s0));
    }
}

KERNEL static void elu_of_half_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x > F(0) ? F(1) : exp(x < F(0) || x != x ? x : F(0)) * F(s0);
    }
}

KERNEL static void erf_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = fabs(x);
        const double t1 = x < F(0.5) || x != x ? x : F(0.5);
        const double t2 = t1 > F(-0.5) || t1 != t1 ? t1 : F(-0.5);
        const double t3 = t2 * t2;
        const double t4 = t0 < F(6) || t0 != t0 ? t0 : F(6);
        const double t5 = t4 > F(0.5) || t4 != t4 ? t4 : F(0.5);
        result0[i] = t0 < F(0.5) ? t2 * (((((t3 * F(0.18577770618460315) + F(3.1611237438705655)) * t3 + F(113.86415415105016)) * t3 + F(377.485237685302)) * t3 + F(3209.3775891384694)) / ((((t3 + F(23.601290952344122)) * t3 + F(244.02463793444417)) * t3 + F(1282.6165260773723)) * t3 + F(2844.236833439171))) : copysign(F(1) - ((((((((t5 * F(2.1531153547440383e-08) + F(0.5641884969886701)) * t5 + F(8.883149794388377)) * t5 + F(66.11919063714163)) * t5 + F(298.6351381974001)) * t5 + F(881.952221241769)) * t5 + F(1712.0476126340707)) * t5 + F(2051.0783778260716)) * t5 + F(1230.3393547979972)) / ((((((((t5 + F(15.744926110709835)) * t5 + F(117.6939508913125)) * t5 + F(537.1811018620099)) * t5 + F(1621.3895745666903)) * t5 + F(3290.7992357334597)) * t5 + F(4362.619090143247)) * t5 + F(3439.3676741437216)) * t5 + F(1230.3393548037495)) * exp(-(t5 * t5)), x);
    }
}

KERNEL static void erf_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g * (exp(-(x * x)) * F(1.1283791670955126));
    }
}

KERNEL static void gated_x_gate_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *gate_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double gate = gate_given[i];
        result0[i] = x / (exp(-gate) + F(1));
    }
}

KERNEL static void gated_grad_g_gate_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *gate_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double gate = gate_given[i];
        result0[i] = g / (exp(-gate) + F(1));
    }
}

KERNEL static void gated_grad_gate_g_x_gate_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *gate_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double gate = gate_given[i];
        const double t0 = exp(-gate) + F(1);
        result0[i] = g * ((F(1) - F(1) / t0) / t0 * x);
    }
}

KERNEL static void gated_grads_g_a_b_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *a_given = (const double *)call->arrays[1];
    const double *b_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    double *result1 = (double *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double a = a_given[i];
        const double b = b_given[i];
        const double t0 = exp(-b) + F(1);
        result0[i] = g * ((F(1) - F(1) / t0) / t0 * a);
        result1[i] = g / t0;
    }
}

KERNEL static void gelu_x_none_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = x * F(0.7071067811865476);
        const double t1 = fabs(t0);
        const double t2 = t0 < F(0.5) || t0 != t0 ? t0 : F(0.5);
        const double t3 = t2 > F(-0.5) || t2 != t2 ? t2 : F(-0.5);
        const double t4 = t3 * t3;
        const double t5 = t1 < F(6) || t1 != t1 ? t1 : F(6);
        const double t6 = t5 > F(0.5) || t5 != t5 ? t5 : F(0.5);
        result0[i] = x * (((t1 < F(0.5) ? t3 * (((((t4 * F(0.18577770618460315) + F(3.1611237438705655)) * t4 + F(113.86415415105016)) * t4 + F(377.485237685302)) * t4 + F(3209.3775891384694)) / ((((t4 + F(23.601290952344122)) * t4 + F(244.02463793444417)) * t4 + F(1282.6165260773723)) * t4 + F(2844.236833439171))) : copysign(F(1) - ((((((((t6 * F(2.1531153547440383e-08) + F(0.5641884969886701)) * t6 + F(8.883149794388377)) * t6 + F(66.11919063714163)) * t6 + F(298.6351381974001)) * t6 + F(881.952221241769)) * t6 + F(1712.0476126340707)) * t6 + F(2051.0783778260716)) * t6 + F(1230.3393547979972)) / ((((((((t6 + F(15.744926110709835)) * t6 + F(117.6939508913125)) * t6 + F(537.1811018620099)) * t6 + F(1621.3895745666903)) * t6 + F(3290.7992357334597)) * t6 + F(4362.619090143247)) * t6 + F(3439.3676741437216)) * t6 + F(1230.3393548037495)) * exp(-(t6 * t6)), t0)) + F(1)) * F(0.5));
    }
}

KERNEL static void gelu_x_tanh_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x * (tanh(x * (x * x * F(0.035677408136300125) + F(0.7978845608028654))) + F(1)) * F(0.5);
    }
}

KERNEL static void gelu_grad_g_x_none_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = x * F(0.7071067811865476);
        const double t1 = fabs(t0);
        const double t2 = t0 < F(0.5) || t0 != t0 ? t0 : F(0.5);
        const double t3 = t2 > F(-0.5) || t2 != t2 ? t2 : F(-0.5);
        const double t4 = t3 * t3;
        const double t5 = t1 < F(6) || t1 != t1 ? t1 : F(6);
        const double t6 = t5 > F(0.5) || t5 != t5 ? t5 : F(0.5);
        result0[i] = g * (((t1 < F(0.5) ? t3 * (((((t4 * F(0.18577770618460315) + F(3.1611237438705655)) * t4 + F(113.86415415105016)) * t4 + F(377.485237685302)) * t4 + F(3209.3775891384694)) / ((((t4 + F(23.601290952344122)) * t4 + F(244.02463793444417)) * t4 + F(1282.6165260773723)) * t4 + F(2844.236833439171))) : copysign(F(1) - ((((((((t6 * F(2.1531153547440383e-08) + F(0.5641884969886701)) * t6 + F(8.883149794388377)) * t6 + F(66.11919063714163)) * t6 + F(298.6351381974001)) * t6 + F(881.952221241769)) * t6 + F(1712.0476126340707)) * t6 + F(2051.0783778260716)) * t6 + F(1230.3393547979972)) / ((((((((t6 + F(15.744926110709835)) * t6 + F(117.6939508913125)) * t6 + F(537.1811018620099)) * t6 + F(1621.3895745666903)) * t6 + F(3290.7992357334597)) * t6 + F(4362.619090143247)) * t6 + F(3439.3676741437216)) * t6 + F(1230.3393548037495)) * exp(-(t6 * t6)), t0)) + F(1)) * F(0.5) + x * (exp(x * x * F(-0.5)) * F(0.3989422804014327)));
    }
}

KERNEL static void gelu_grad_g_x_tanh_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = x * x;
        const double t1 = tanh(x * (t0 * F(0.035677408136300125) + F(0.7978845608028654)));
        result0[i] = g * ((t1 + F(1)) * (x * (F(1) - t1) * (t0 * F(0.10703222440890037) + F(0.7978845608028654)) + F(1)) * F(0.5));
    }
}

KERNEL static void gelu_grad_x_none_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = x * F(0.7071067811865476);
        const double t1 = fabs(t0);
        const double t2 = t0 < F(0.5) || t0 != t0 ? t0 : F(0.5);
        const double t3 = t2 > F(-0.5) || t2 != t2 ? t2 : F(-0.5);
        const double t4 = t3 * t3;
        const double t5 = t1 < F(6) || t1 != t1 ? t1 : F(6);
        const double t6 = t5 > F(0.5) || t5 != t5 ? t5 : F(0.5);
        result0[i] = ((t1 < F(0.5) ? t3 * (((((t4 * F(0.18577770618460315) + F(3.1611237438705655)) * t4 + F(113.86415415105016)) * t4 + F(377.485237685302)) * t4 + F(3209.3775891384694)) / ((((t4 + F(23.601290952344122)) * t4 + F(244.02463793444417)) * t4 + F(1282.6165260773723)) * t4 + F(2844.236833439171))) : copysign(F(1) - ((((((((t6 * F(2.1531153547440383e-08) + F(0.5641884969886701)) * t6 + F(8.883149794388377)) * t6 + F(66.11919063714163)) * t6 + F(298.6351381974001)) * t6 + F(881.952221241769)) * t6 + F(1712.0476126340707)) * t6 + F(2051.0783778260716)) * t6 + F(1230.3393547979972)) / ((((((((t6 + F(15.744926110709835)) * t6 + F(117.6939508913125)) * t6 + F(537.1811018620099)) * t6 + F(1621.3895745666903)) * t6 + F(3290.7992357334597)) * t6 + F(4362.619090143247)) * t6 + F(3439.3676741437216)) * t6 + F(1230.3393548037495)) * exp(-(t6 * t6)), t0)) + F(1)) * F(0.5) + x * (exp(x * x * F(-0.5)) * F(0.3989422804014327));
    }
}

KERNEL static void gelu_grad_x_tanh_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = x * x;
        const double t1 = tanh(x * (t0 * F(0.035677408136300125) + F(0.7978845608028654)));
        result0[i] = (t1 + F(1)) * (x * (F(1) - t1) * (t0 * F(0.10703222440890037) + F(0.7978845608028654)) + F(1)) * F(0.5);
    }
}

KERNEL static void kl_div_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = t * (log(t == F(0) ? F(1) : t) - x);
    }
}

KERNEL static void kl_div_grad_target_g_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = g * ((log(t == F(0) ? F(1) : t) + F(1) - x) * F(s0));
    }
}

KERNEL static void kl_div_log_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = exp(t) * (t - x);
    }
}

KERNEL static void kl_div_log_grad_g_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *t_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double t = t_given[i];
        result0[i] = g * (exp(t) * F(s0));
    }
}

KERNEL static void kl_div_log_grad_target_g_x_t_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *t_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t = t_given[i];
        result0[i] = g * (exp(t) * F(s0) * (t - x + F(1)));
    }
}

KERNEL static void logaddexp_grad_g_x1_x2_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x1_given = (const double *)call->arrays[1];
    const double *x2_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x1 = x1_given[i];
        const double x2 = x2_given[i];
        result0[i] = g / (exp(x2 - x1) + F(1));
    }
}

KERNEL static void logsigmoid_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = (x < F(0) || x != x ? x : F(0)) - log1p(exp(-fabs(x)));
    }
}

KERNEL static void logsigmoid_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g / (exp(x) + F(1));
    }
}

KERNEL static void logsigmoid_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = F(1) / (exp(x) + F(1));
    }
}

KERNEL static void mish_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = exp(x < F(20) || x != x ? x : F(20));
        const double t1 = t0 * (t0 + F(2));
        result0[i] = x * (t1 / (t1 + F(2)));
    }
}

KERNEL static void mish_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = exp(x < F(20) || x != x ? x : F(20));
        const double t1 = t0 * (t0 + F(2));
        const double t2 = t1 / (t1 + F(2));
        result0[i] = g * (t2 + x * (F(1) - t2 * t2) / (exp(-x) + F(1)));
    }
}

KERNEL static void mish_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = exp(x < F(20) || x != x ? x : F(20));
        const double t1 = t0 * (t0 + F(2));
        const double t2 = t1 / (t1 + F(2));
        result0[i] = t2 + x * (F(1) - t2 * t2) / (exp(-x) + F(1));
    }
}

KERNEL static void norm_share_g_x_norm_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    const double *norm_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double norm = norm_given[i];
        result0[i] = g * (x / (norm == F(0) ? F(1) : norm));
    }
}

KERNEL static void selu_of_half_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = g * (x > F(0) ? F(1.0507009873554805) : exp(x < F(0) || x != x ? x : F(0)) * F(1.7580993408473766));
    }
}

KERNEL static void selu_of_half_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x > F(0) ? F(1.0507009873554805) : exp(x < F(0) || x != x ? x : F(0)) * F(1.7580993408473766);
    }
}

KERNEL static void sigmoid_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = F(1) / (exp(-x) + F(1));
    }
}

KERNEL static void sigmoid_inverse_y_d(const Call *call, int64_t begin, int64_t end) {
    const double *y_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double y = y_given[i];
        result0[i] = log(y / (F(1) - y));
    }
}

KERNEL static void silu_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x / (exp(-x) + F(1));
    }
}

KERNEL static void silu_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = exp(-x) + F(1);
        result0[i] = g * ((x * (F(1) - F(1) / t0) + F(1)) / t0);
    }
}

KERNEL static void silu_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = exp(-x) + F(1);
        result0[i] = (x * (F(1) - F(1) / t0) + F(1)) / t0;
    }
}

KERNEL static void softplus_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    const double s0 = F(call->numbers[0]);
    const double s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = x * F(s0);
        result0[i] = t0 > F(s1) ? x : ((t0 > F(0) || t0 != t0 ? t0 : F(0)) + log1p(exp(-fabs(t0)))) / F(s0);
    }
}

KERNEL static void softplus_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    const double s1 = F(call->numbers[1]);
    const double s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        result0[i] = x * F(s0) > F(s1) ? g : g / (exp(x * F(s2)) + F(1));
    }
}

KERNEL static void softplus_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    const double s0 = F(call->numbers[0]);
    const double s1 = F(call->numbers[1]);
    const double s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x * F(s0) > F(s1) ? F(1) : F(1) / (exp(x * F(s2)) + F(1));
    }
}

KERNEL static void softsign_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        result0[i] = x / (fabs(x) + F(1));
    }
}

KERNEL static void softsign_grad_g_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double x = x_given[i];
        const double t0 = fabs(x) + F(1);
        result0[i] = g / (t0 * t0);
    }
}

KERNEL static void softsign_grad_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_given = (const double *)call->arrays[0];
    double *result0 = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_given[i];
        const double t0 = fabs(x) + F(1);
        result0[i] = F(1) / (t0 * t0);
    }
}

KERNEL static void swish_gated_gate_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *gate_given = (const double *)call->arrays[0];
    const double *x_given = (const double *)call->arrays[1];
    double *result0 = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double gate = gate_given[i];
        const double x = x_given[i];
        result0[i] = x * (gate / (exp(-gate) + F(1)));
    }
}

KERNEL static void swish_gated_grad_gate_g_gate_x_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *gate_given = (const double *)call->arrays[1];
    const double *x_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double gate = gate_given[i];
        const double x = x_given[i];
        const double t0 = exp(-gate) + F(1);
        const double t1 = F(1) / t0;
        result0[i] = g * ((t1 + (F(1) - t1) / t0 * gate) * x);
    }
}

KERNEL static void swish_gated_grads_g_a_b_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_given = (const double *)call->arrays[0];
    const double *a_given = (const double *)call->arrays[1];
    const double *b_given = (const double *)call->arrays[2];
    double *result0 = (double *)call->arrays[3];
    double *result1 = (double *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_given[i];
        const double a = a_given[i];
        const double b = b_given[i];
        const double t0 = exp(-a) + F(1);
        const double t1 = F(1) / t0;
        result0[i] = g * (a / t0);
        result1[i] = g * ((t1 + (F(1) - t1) / t0 * a) * b);
    }
}

const Entry formulas_double[] = {
    {"acos_grad_g_x_d", acos_grad_g_x_d},
    {"acosh_grad_g_x_d", acosh_grad_g_x_d},
    {"asin_grad_g_x_d", asin_grad_g_x_d},
    {"asinh_grad_g_x_d", asinh_grad_g_x_d},
    {"atan2_grad_x1_g_x1_x2_d", atan2_grad_x1_g_x1_x2_d},
    {"atan2_grad_x2_g_x1_x2_d", atan2_grad_x2_g_x1_x2_d},
    {"atan_grad_g_x_d", atan_grad_g_x_d},
    {"atanh_grad_g_x_d", atanh_grad_g_x_d},
    {"bce_x_t_weight_d", bce_x_t_weight_d},
    {"bce_x_t_d", bce_x_t_d},
    {"bce_grad_g_x_t_weight_d", bce_grad_g_x_t_weight_d},
    {"bce_grad_g_x_t_d", bce_grad_g_x_t_d},
    {"bce_grad_target_g_x_weight_d", bce_grad_target_g_x_weight_d},
    {"bce_grad_target_g_x_d", bce_grad_target_g_x_d},
    {"bce_logits_x_t_weight_positive_d", bce_logits_x_t_weight_positive_d},
    {"bce_logits_x_t_d", bce_logits_x_t_d},
    {"bce_logits_grad_g_x_t_weight_positive_d", bce_logits_grad_g_x_t_weight_positive_d},
    {"bce_logits_grad_g_x_t_d", bce_logits_grad_g_x_t_d},
    {"bce_logits_grad_positive_g_x_t_weight_d", bce_logits_grad_positive_g_x_t_weight_d},
    {"bce_logits_grad_positive_g_x_t_d", bce_logits_grad_positive_g_x_t_d},
    {"bce_logits_grad_target_g_x_weight_positive_d", bce_logits_grad_target_g_x_weight_positive_d},
    {"copysign_grad_g_x1_x2_d", copysign_grad_g_x1_x2_d},
    {"divide_grad_g_x2_y_d", divide_grad_g_x2_y_d},
    {"elu_inverse_y_d", elu_inverse_y_d},
    {"elu_of_half_grad_g_x_d", elu_of_half_grad_g_x_d},
    {"elu_of_half_grad_x_d", elu_of_half_grad_x_d},
    {"erf_x_d", erf_x_d},
    {"erf_grad_g_x_d", erf_grad_g_x_d},
    {"gated_x_gate_d", gated_x_gate_d},
    {"gated_grad_g_gate_d", gated_grad_g_gate_d},
    {"gated_grad_gate_g_x_gate_d", gated_grad_gate_g_x_gate_d},
    {"gated_grads_g_a_b_d", gated_grads_g_a_b_d},
    {"gelu_x_none_d", gelu_x_none_d},
    {"gelu_x_tanh_d", gelu_x_tanh_d},
    {"gelu_grad_g_x_none_d", gelu_grad_g_x_none_d},
    {"gelu_grad_g_x_tanh_d", gelu_grad_g_x_tanh_d},
    {"gelu_grad_x_none_d", gelu_grad_x_none_d},
    {"gelu_grad_x_tanh_d", gelu_grad_x_tanh_d},
    {"kl_div_x_t_d", kl_div_x_t_d},
    {"kl_div_grad_target_g_x_t_d", kl_div_grad_target_g_x_t_d},
    {"kl_div_log_x_t_d", kl_div_log_x_t_d},
    {"kl_div_log_grad_g_t_d", kl_div_log_grad_g_t_d},
    {"kl_div_log_grad_target_g_x_t_d", kl_div_log_grad_target_g_x_t_d},
    {"logaddexp_grad_g_x1_x2_d", logaddexp_grad_g_x1_x2_d},
    {"logsigmoid_x_d", logsigmoid_x_d},
    {"logsigmoid_grad_g_x_d", logsigmoid_grad_g_x_d},
    {"logsigmoid_grad_x_d", logsigmoid_grad_x_d},
    {"mish_x_d", mish_x_d},
    {"mish_grad_g_x_d", mish_grad_g_x_d},
    {"mish_grad_x_d", mish_grad_x_d},
    {"norm_share_g_x_norm_d", norm_share_g_x_norm_d},
    {"selu_of_half_grad_g_x_d", selu_of_half_grad_g_x_d},
    {"selu_of_half_grad_x_d", selu_of_half_grad_x_d},
    {"sigmoid_x_d", sigmoid_x_d},
    {"sigmoid_inverse_y_d", sigmoid_inverse_y_d},
    {"silu_x_d", silu_x_d},
    {"silu_grad_g_x_d", silu_grad_g_x_d},
    {"silu_grad_x_d", silu_grad_x_d},
    {"softplus_x_d", softplus_x_d},
    {"softplus_grad_g_x_d", softplus_grad_g_x_d},
    {"softplus_grad_x_d", softplus_grad_x_d},
    {"softsign_x_d", softsign_x_d},
    {"softsign_grad_g_x_d", softsign_grad_g_x_d},
    {"softsign_grad_x_d", softsign_grad_x_d},
    {"swish_gated_gate_x_d", swish_gated_gate_x_d},
    {"swish_gated_grad_gate_g_gate_x_d", swish_gated_grad_gate_g_gate_x_d},
    {"swish_gated_grads_g_a_b_d", swish_gated_grads_g_a_b_d},
    {NULL, NULL},
};
