/* The oracle of a policy for images (worker/model/policy_networks.c): the CNN in plain C and double, from
 * images as an environment writes them. Only tests call it. The head is test/oracle/dense_ref.h's. */
#ifndef TEST_ORACLE_CNN_REF_H
#define TEST_ORACLE_CNN_REF_H

#include "worker/model/policy.h"

/* The log-probability of the own action of row `row` of the arrays. `parameters` has those of
 * policy_parameters, one behind the other. Ends the program when memory runs out. */
double cnn_ref_log_probability(const struct policy_config *config, const double *parameters,
                               const struct policy_rows *rows, uint32_t row);

#endif
