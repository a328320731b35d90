/* The learning rate's decay on a plateau, as in the tutorial's language model: after a held-out loss that is
 * not below the best one so far, or not finite, the rate is multiplied by `decay`, unless that would make it
 * 0. Pure. */
#ifndef WORKER_MODEL_PARALLEL_PLATEAU_H
#define WORKER_MODEL_PARALLEL_PLATEAU_H

struct plateau {
    double lr;        /* of the next update */
    double best_loss; /* INFINITY: none yet */
};

/* Takes a held-out loss: a new best_loss, or a smaller lr. */
void plateau_see(struct plateau *plateau, double loss, double decay);

#endif
