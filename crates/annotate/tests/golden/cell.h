#pragma nvcp
typedef struct { double x, y; } Vector;
enum Phase { GAS, LIQUID };
