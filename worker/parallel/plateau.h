/* The learning rate's decay on a plateau, as the tutorial's language model has it: whenever a held-out loss
 * is not below the best one so far, the rate is multiplied by `decay`, as long as something is left of it: an
 * update of rate 0 is none. Pure. */
#ifndef WORKER_PARALLEL_PLATEAU_H
#define WORKER_PARALLEL_PLATEAU_H

struct plateau {
    double lr;        /* of the next update */
    double best_loss; /* INFINITY: none yet */
};

/* A held-out loss has come. Where it is below the best one, it is the best from now on; else lr falls. */
void plateau_see(struct plateau *plateau, double loss, double decay);

#endif
