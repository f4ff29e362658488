"""The paper's figures, reproduced: ``results.plan`` says what is to be run, ``results.execute`` runs it."""
