/* The constants of VELOC. */
#ifndef OUTCROP_VELOC_DEFS_H
#define OUTCROP_VELOC_DEFS_H

#ifndef VELOC_SUCCESS
#define VELOC_SUCCESS (0)
#endif

#ifndef VELOC_FAILURE
#define VELOC_FAILURE (-1)
#endif

/* The room that VELOC_Route_file needs for a path. */
#define VELOC_MAX_NAME (1024)

/* Which regions a list of ids means. */
#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)

/* What an observer hears of. */
#define VELOC_OBSERVE_CKPT_END (0)

#endif
