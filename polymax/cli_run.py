"""train TASK --flag value ... | evaluate RUN FILE...: without the command line's packages."""
import sys, torch
from pathlib import Path
if sys.argv[1]=="train":
    from polymax.recipes.training.fit import train
    from polymax.recipes.training.task import named
    task=sys.argv[2]; files={}; given={}; out=None
    args=sys.argv[3:]; k=0
    while k<len(args):
        name=args[k][2:].replace("-","_")
        if k+1==len(args) or args[k+1].startswith("--"):
            given[name]=True; k+=1; continue
        value=args[k+1]; k+=2
        if name in("train","dev","test"): files.setdefault(name,[]).append(Path(value))
        elif name=="out": out=Path(value)
        else: given[name]=value
    reports=train(task,files,out,given)
else:
    from polymax.recipes import load
    t=load(sys.argv[2],device="cuda")
    reports={"test":t.evaluate(*sys.argv[3:])}
for part,r in reports.items():
    for n,v in r.items(): print("REPORT",part,n,v)
