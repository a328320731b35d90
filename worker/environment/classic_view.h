/* Pictures of the built-in environments: Gymnasium's views, painted with bars. They lack anti-aliasing, the
 * corners of MountainCar's flag, and the arrow that shows Pendulum's torque.
 *
 * As text: a line with the state's numbers, and 60 columns of the same scene in letters. As RGB: 600 x 400 of
 * CartPole and the mountain cars, 500 x 500 of the others. Private to classic.c and its test. */
#ifndef WORKER_ENVIRONMENT_CLASSIC_VIEW_H
#define WORKER_ENVIRONMENT_CLASSIC_VIEW_H

#include "worker/environment/classic_lanes.h"

/* Of a state in the order of the kind's struct: the `render` of environment.h. */
size_t classic_view(enum classic_kind kind, const double values[CLASSIC_VALUES_MAX], int picture,
                    uint32_t *width, uint32_t *height, void *out, size_t capacity);

#endif
