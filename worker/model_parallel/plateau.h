/* The learning rate's decay on a plateau, as in the tutorial's language model. A held-out loss that is not
 * finite, or not below the best one so far, multiplies the rate by `decay`, unless the rate would become 0.
 * Pure. */
#ifndef WORKER_MODEL_PARALLEL_PLATEAU_H
#define WORKER_MODEL_PARALLEL_PLATEAU_H

struct plateau {
    double lr;        /* of the next update */
    double best_loss; /* INFINITY: none yet */
};

/* Takes a held-out loss: a new best_loss, or a smaller lr. */
void plateau_see(struct plateau *plateau, double loss, double decay);

#endif
