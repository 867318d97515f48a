// Formulas of double. Written by tests/formulas_in_c.py.

#include "../../../../kernels/cpu/functions.h"

#define F(x) ((double)(x))
#define exp exp_double
#define exp_raised exp_raised_double
#define madd madd_double
#define tanh tanh_double
#define log log_double
#define log1p log1p_double
#define select select_double
#define maximum maximum_double
#define minimum minimum_double

KERNEL static void bce_85a229ca_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    const double *weight_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double weight = weight_at[i];
        const double result_next = ((t - F(1)) * maximum(log1p(-x), F(-100)) - t * maximum(log(x), F(-100))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_17aea40a_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = (t - F(1)) * maximum(log1p(-x), F(-100)) - t * maximum(log(x), F(-100));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_target_5209d21c_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *weight_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double weight = weight_at[i];
        const double result_next = g * ((maximum(log1p(-x), F(-100)) - maximum(log(x), F(-100))) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_grad_target_4a45a150_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = g * ((maximum(log1p(-x), F(-100)) - maximum(log(x), F(-100))) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_e1a619f4_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    const double *weight_at = (const double *)call->arrays[2];
    const double *positive_at = (const double *)call->arrays[3];
    double *result_at = (double *)call->arrays[4];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double weight = weight_at[i];
        const double positive = positive_at[i];
        const double result_next = ((F(1) - t) * x + (log1p(exp(-fabs(x))) - minimum(x, F(0))) * ((positive - F(1)) * t + F(1))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_7cf176f1_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = (F(1) - t) * x + (log1p(exp(-fabs(x))) - minimum(x, F(0)));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_87951dd1_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    const double *weight_at = (const double *)call->arrays[3];
    const double *positive_at = (const double *)call->arrays[4];
    double *result_at = (double *)call->arrays[5];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double weight = weight_at[i];
        const double positive = positive_at[i];
        const double t0 = positive * t;
        const double result_next = g * (((t0 + F(1) - t) / (F(1) + exp_raised(-x)) - t0) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_0df10b6c_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = g * ((F(1) / (F(1) + exp_raised(-x)) - t) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_positive_20aeaffb_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    const double *weight_at = (const double *)call->arrays[3];
    double *result_at = (double *)call->arrays[4];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double weight = weight_at[i];
        const double result_next = g * (t * F(s0) * (log1p(exp(-fabs(x))) - minimum(x, F(0)))) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_positive_a9ce5b0c_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = g * (t * F(s0) * (log1p(exp(-fabs(x))) - minimum(x, F(0))));
        result_at[i] = result_next;
    }
}

KERNEL static void bce_logits_grad_target_201f27b4_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *weight_at = (const double *)call->arrays[2];
    const double *positive_at = (const double *)call->arrays[3];
    double *result_at = (double *)call->arrays[4];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double weight = weight_at[i];
        const double positive = positive_at[i];
        const double result_next = g * (((positive - F(1)) * (log1p(exp(-fabs(x))) - minimum(x, F(0))) - x) * F(s0)) * weight;
        result_at[i] = result_next;
    }
}

KERNEL static void elu_of_half_grad_f578497c_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = select(x > F(0), g, g * (exp(minimum(x, F(0))) * F(s0)));
        result_at[i] = result_next;
    }
}

KERNEL static void erf_d283c097_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t0 = fabs(x);
        const double t1 = maximum(minimum(x, F(0.5)), F(-0.5));
        const double t2 = t1 * t1;
        const double t3 = maximum(minimum(t0, F(6)), F(0.5));
        const double result_next = select(t0 < F(0.5), t1 * (madd(madd(madd(madd(t2, F(0.18577770618460315), F(3.1611237438705655)), t2, F(113.86415415105016)), t2, F(377.485237685302)), t2, F(3209.3775891384694)) / madd(madd(madd(t2 + F(23.601290952344122), t2, F(244.02463793444417)), t2, F(1282.6165260773723)), t2, F(2844.236833439171))), copysign(F(1) - madd(madd(madd(madd(madd(madd(madd(madd(t3, F(2.1531153547440383e-08), F(0.5641884969886701)), t3, F(8.883149794388377)), t3, F(66.11919063714163)), t3, F(298.6351381974001)), t3, F(881.952221241769)), t3, F(1712.0476126340707)), t3, F(2051.0783778260716)), t3, F(1230.3393547979972)) / madd(madd(madd(madd(madd(madd(madd(t3 + F(15.744926110709835), t3, F(117.6939508913125)), t3, F(537.1811018620099)), t3, F(1621.3895745666903)), t3, F(3290.7992357334597)), t3, F(4362.619090143247)), t3, F(3439.3676741437216)), t3, F(1230.3393548037495)) * exp(-(t3 * t3)), x));
        result_at[i] = result_next;
    }
}

KERNEL static void erf_grad_e05f6408_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = g * (exp(-(x * x)) * F(1.1283791670955126));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_1baaf174_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *gate_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double gate = gate_at[i];
        const double result_next = x / (F(1) + exp_raised(-gate));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_grad_81096f2c_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *gate_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double gate = gate_at[i];
        const double result_next = g / (F(1) + exp_raised(-gate));
        result_at[i] = result_next;
    }
}

KERNEL static void gated_grad_gate_ee4fb997_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *gate_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double gate = gate_at[i];
        const double t0 = F(1) + exp_raised(-gate);
        const double result_next = g * ((F(1) - F(1) / t0) / t0 * x);
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_1a58c7b8_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t0 = x * F(0.7071067811865476);
        const double t1 = fabs(t0);
        const double t2 = maximum(minimum(t0, F(0.5)), F(-0.5));
        const double t3 = t2 * t2;
        const double t4 = maximum(minimum(t1, F(6)), F(0.5));
        const double result_next = x * ((select(t1 < F(0.5), t2 * (madd(madd(madd(madd(t3, F(0.18577770618460315), F(3.1611237438705655)), t3, F(113.86415415105016)), t3, F(377.485237685302)), t3, F(3209.3775891384694)) / madd(madd(madd(t3 + F(23.601290952344122), t3, F(244.02463793444417)), t3, F(1282.6165260773723)), t3, F(2844.236833439171))), copysign(F(1) - madd(madd(madd(madd(madd(madd(madd(madd(t4, F(2.1531153547440383e-08), F(0.5641884969886701)), t4, F(8.883149794388377)), t4, F(66.11919063714163)), t4, F(298.6351381974001)), t4, F(881.952221241769)), t4, F(1712.0476126340707)), t4, F(2051.0783778260716)), t4, F(1230.3393547979972)) / madd(madd(madd(madd(madd(madd(madd(t4 + F(15.744926110709835), t4, F(117.6939508913125)), t4, F(537.1811018620099)), t4, F(1621.3895745666903)), t4, F(3290.7992357334597)), t4, F(4362.619090143247)), t4, F(3439.3676741437216)), t4, F(1230.3393548037495)) * exp(-(t4 * t4)), t0)) + F(1)) * F(0.5));
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_13ee3f64_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double result_next = x * (tanh(x * madd(x * x, F(0.035677408136300125), F(0.7978845608028654))) + F(1)) * F(0.5);
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_grad_0d455cc2_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t0 = x * F(0.7071067811865476);
        const double t1 = fabs(t0);
        const double t2 = maximum(minimum(t0, F(0.5)), F(-0.5));
        const double t3 = t2 * t2;
        const double t4 = maximum(minimum(t1, F(6)), F(0.5));
        const double result_next = g * ((select(t1 < F(0.5), t2 * (madd(madd(madd(madd(t3, F(0.18577770618460315), F(3.1611237438705655)), t3, F(113.86415415105016)), t3, F(377.485237685302)), t3, F(3209.3775891384694)) / madd(madd(madd(t3 + F(23.601290952344122), t3, F(244.02463793444417)), t3, F(1282.6165260773723)), t3, F(2844.236833439171))), copysign(F(1) - madd(madd(madd(madd(madd(madd(madd(madd(t4, F(2.1531153547440383e-08), F(0.5641884969886701)), t4, F(8.883149794388377)), t4, F(66.11919063714163)), t4, F(298.6351381974001)), t4, F(881.952221241769)), t4, F(1712.0476126340707)), t4, F(2051.0783778260716)), t4, F(1230.3393547979972)) / madd(madd(madd(madd(madd(madd(madd(t4 + F(15.744926110709835), t4, F(117.6939508913125)), t4, F(537.1811018620099)), t4, F(1621.3895745666903)), t4, F(3290.7992357334597)), t4, F(4362.619090143247)), t4, F(3439.3676741437216)), t4, F(1230.3393548037495)) * exp(-(t4 * t4)), t0)) + F(1)) * F(0.5) + x * (exp(x * x * F(-0.5)) * F(0.3989422804014327)));
        result_at[i] = result_next;
    }
}

KERNEL static void gelu_grad_33a1aeb8_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t0 = x * x;
        const double t1 = tanh(x * madd(t0, F(0.035677408136300125), F(0.7978845608028654)));
        const double result_next = g * ((t1 + F(1)) * madd(x * (F(1) - t1), madd(t0, F(0.10703222440890037), F(0.7978845608028654)), F(1)) * F(0.5));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_3ad7fa92_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = t * (log(select(t == F(0), F(1), t)) - x);
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_grad_target_8ce1747e_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = g * ((log(select(t == F(0), F(1), t)) + F(1) - x) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_62412190_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = exp(t) * (t - x);
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_grad_188c1587_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *t_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double t = t_at[i];
        const double result_next = g * (exp(t) * F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void kl_div_log_grad_target_41804c0d_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    const double *t_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    const double s0 = F(call->numbers[0]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t = t_at[i];
        const double result_next = g * (exp(t) * F(s0) * (t - x + F(1)));
        result_at[i] = result_next;
    }
}

KERNEL static void logaddexp_grad_7f2ce2fa_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x1_at = (const double *)call->arrays[1];
    const double *x2_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x1 = x1_at[i];
        const double x2 = x2_at[i];
        const double result_next = g / (F(1) + exp_raised(x2 - x1));
        result_at[i] = result_next;
    }
}

KERNEL static void logsigmoid_6207f9a8_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double result_next = minimum(x, F(0)) - log1p(exp(-fabs(x)));
        result_at[i] = result_next;
    }
}

KERNEL static void logsigmoid_grad_fd673de7_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = g / (F(1) + exp_raised(x));
        result_at[i] = result_next;
    }
}

KERNEL static void mish_b099e3ff_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t0 = exp(minimum(x, F(20)));
        const double t1 = t0 * (t0 + F(2));
        const double result_next = x * (t1 / (t1 + F(2)));
        result_at[i] = result_next;
    }
}

KERNEL static void mish_grad_1dbf62c9_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t0 = exp(minimum(x, F(20)));
        const double t1 = t0 * (t0 + F(2));
        const double t2 = t1 / (t1 + F(2));
        const double result_next = g * (t2 + x * (F(1) - t2 * t2) / (F(1) + exp_raised(-x)));
        result_at[i] = result_next;
    }
}

KERNEL static void selu_of_half_grad_d0af7bd7_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = g * select(x > F(0), F(1.0507009873554805), exp(minimum(x, F(0))) * F(1.7580993408473766));
        result_at[i] = result_next;
    }
}

KERNEL static void sigmoid_5043fc48_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double result_next = F(1) / (F(1) + exp_raised(-x));
        result_at[i] = result_next;
    }
}

KERNEL static void silu_3f3dd9e1_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double result_next = x / (F(1) + exp_raised(-x));
        result_at[i] = result_next;
    }
}

KERNEL static void silu_grad_27fa6443_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double t0 = F(1) + exp_raised(-x);
        const double result_next = g * ((x * (F(1) - F(1) / t0) + F(1)) / t0);
        result_at[i] = result_next;
    }
}

KERNEL static void softplus_9a8a7dec_d(const Call *call, int64_t begin, int64_t end) {
    const double *x_at = (const double *)call->arrays[0];
    double *result_at = (double *)call->arrays[1];
    const double s0 = F(call->numbers[0]);
    const double s1 = F(call->numbers[1]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double x = x_at[i];
        const double t0 = x * F(s0);
        const double result_next = select(t0 > F(s1), x, (maximum(t0, F(0)) + log1p(exp(-fabs(t0)))) / F(s0));
        result_at[i] = result_next;
    }
}

KERNEL static void softplus_grad_1a1c4bf6_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    const double s0 = F(call->numbers[0]);
    const double s1 = F(call->numbers[1]);
    const double s2 = F(call->numbers[2]);
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double x = x_at[i];
        const double result_next = select(x * F(s0) > F(s1), g, g / (F(1) + exp_raised(x * F(s2))));
        result_at[i] = result_next;
    }
}

KERNEL static void swish_gated_50b5f62f_d(const Call *call, int64_t begin, int64_t end) {
    const double *gate_at = (const double *)call->arrays[0];
    const double *x_at = (const double *)call->arrays[1];
    double *result_at = (double *)call->arrays[2];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double gate = gate_at[i];
        const double x = x_at[i];
        const double result_next = x * (gate / (F(1) + exp_raised(-gate)));
        result_at[i] = result_next;
    }
}

KERNEL static void swish_gated_grad_gate_d977156f_d(const Call *call, int64_t begin, int64_t end) {
    const double *g_at = (const double *)call->arrays[0];
    const double *gate_at = (const double *)call->arrays[1];
    const double *x_at = (const double *)call->arrays[2];
    double *result_at = (double *)call->arrays[3];
    EACH_ALONE
    for (int64_t i = begin; i < end; i++) {
        const double g = g_at[i];
        const double gate = gate_at[i];
        const double x = x_at[i];
        const double t0 = F(1) + exp_raised(-gate);
        const double t1 = F(1) / t0;
        const double result_next = g * ((t1 + (F(1) - t1) / t0 * gate) * x);
        result_at[i] = result_next;
    }
}

const Entry formulas_double[] = {
    {"bce_85a229ca_d", bce_85a229ca_d},
    {"bce_17aea40a_d", bce_17aea40a_d},
    {"bce_grad_target_5209d21c_d", bce_grad_target_5209d21c_d},
    {"bce_grad_target_4a45a150_d", bce_grad_target_4a45a150_d},
    {"bce_logits_e1a619f4_d", bce_logits_e1a619f4_d},
    {"bce_logits_7cf176f1_d", bce_logits_7cf176f1_d},
    {"bce_logits_grad_87951dd1_d", bce_logits_grad_87951dd1_d},
    {"bce_logits_grad_0df10b6c_d", bce_logits_grad_0df10b6c_d},
    {"bce_logits_grad_positive_20aeaffb_d", bce_logits_grad_positive_20aeaffb_d},
    {"bce_logits_grad_positive_a9ce5b0c_d", bce_logits_grad_positive_a9ce5b0c_d},
    {"bce_logits_grad_target_201f27b4_d", bce_logits_grad_target_201f27b4_d},
    {"elu_of_half_grad_f578497c_d", elu_of_half_grad_f578497c_d},
    {"erf_d283c097_d", erf_d283c097_d},
    {"erf_grad_e05f6408_d", erf_grad_e05f6408_d},
    {"gated_1baaf174_d", gated_1baaf174_d},
    {"gated_grad_81096f2c_d", gated_grad_81096f2c_d},
    {"gated_grad_gate_ee4fb997_d", gated_grad_gate_ee4fb997_d},
    {"gelu_1a58c7b8_d", gelu_1a58c7b8_d},
    {"gelu_13ee3f64_d", gelu_13ee3f64_d},
    {"gelu_grad_0d455cc2_d", gelu_grad_0d455cc2_d},
    {"gelu_grad_33a1aeb8_d", gelu_grad_33a1aeb8_d},
    {"kl_div_3ad7fa92_d", kl_div_3ad7fa92_d},
    {"kl_div_grad_target_8ce1747e_d", kl_div_grad_target_8ce1747e_d},
    {"kl_div_log_62412190_d", kl_div_log_62412190_d},
    {"kl_div_log_grad_188c1587_d", kl_div_log_grad_188c1587_d},
    {"kl_div_log_grad_target_41804c0d_d", kl_div_log_grad_target_41804c0d_d},
    {"logaddexp_grad_7f2ce2fa_d", logaddexp_grad_7f2ce2fa_d},
    {"logsigmoid_6207f9a8_d", logsigmoid_6207f9a8_d},
    {"logsigmoid_grad_fd673de7_d", logsigmoid_grad_fd673de7_d},
    {"mish_b099e3ff_d", mish_b099e3ff_d},
    {"mish_grad_1dbf62c9_d", mish_grad_1dbf62c9_d},
    {"selu_of_half_grad_d0af7bd7_d", selu_of_half_grad_d0af7bd7_d},
    {"sigmoid_5043fc48_d", sigmoid_5043fc48_d},
    {"silu_3f3dd9e1_d", silu_3f3dd9e1_d},
    {"silu_grad_27fa6443_d", silu_grad_27fa6443_d},
    {"softplus_9a8a7dec_d", softplus_9a8a7dec_d},
    {"softplus_grad_1a1c4bf6_d", softplus_grad_1a1c4bf6_d},
    {"swish_gated_50b5f62f_d", swish_gated_50b5f62f_d},
    {"swish_gated_grad_gate_d977156f_d", swish_gated_grad_gate_d977156f_d},
    {NULL, NULL},
};
