#include <stdio.h>
static inline int clampi(int v,int lo,int hi){ return v<lo?lo:v>hi?hi:v; }
int f(int a,int b,int c){ if ((a && b) || c) return 1; return 0; }
int main(int argc,char**argv){ int s=0; for(int i=0;i<10;i++) s+=f(i&1,i&2,argc>3)+clampi(i,2,7); printf("%d\n",s); return 0; }
