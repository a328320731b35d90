/* Lowers the learning rate on a plateau. Pure arithmetic, in the lead's thread. */
#include "worker/model_parallel/plateau.h"

#include <math.h>

void plateau_see(struct plateau *plateau, double loss, double decay)
{
    if (isfinite(loss) && loss < plateau->best_loss)
        plateau->best_loss = loss;
    else if (plateau->lr * decay > 0)
        plateau->lr *= decay;
}
